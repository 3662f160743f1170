"""Questions about the texts of a request, asked in turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait

from app.engine_client import ASKER_IDS, EngineClient
from app.http.errors import ClientGoneError
from gpu.inspection.requests import Answer, Question

MAX_ASKED = 2
"""Questions of one request that the engine has at once: one to answer, and one to go on with."""
POLL_SECONDS = 0.1
"""Interval at which the connection of the client is checked."""


def ask_in_turn(
    engine: EngineClient, questions: Sequence[Question], gone: Callable[[], bool]
) -> Iterator[Answer]:
    """Yield the answers in order, with at most `MAX_ASKED` questions open. At the end, also if the
    client disconnects (`gone`) or a question fails, those under way are cancelled and the engine
    forgets who asked."""
    asker, waiting = next(ASKER_IDS), deque(questions)
    asked: deque[Future[Answer]] = deque()
    try:
        while waiting or asked:
            while waiting and len(asked) < MAX_ASKED:
                asked.append(engine.inspect(waiting.popleft(), asker))
            yield _result(asked[0], gone)
            asked.popleft()
    finally:
        engine.cancel_questions(asker)


def _result(future: Future[Answer], gone: Callable[[], bool]) -> Answer:
    """Wait for an answer. Raises `ClientGoneError` if the client disconnects meanwhile."""
    while not wait([future], POLL_SECONDS).done:
        if gone():
            raise ClientGoneError
    return future.result()
