"""What a page asks and is answered once, however late: how many at a time, and what goes wrong."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

from app.engines import EngineClient
from app.frames import Frame
from app.protocol import Error, Inspect, ToPage
from gpu import EngineError, QueueFull
from gpu.inspection import Answer

log = logging.getLogger(__name__)

MAX_UNDER_WAY = 8
"""Questions of one page that are asked, or answered and not yet sent. It bounds what one page can
make the engine do, and what a page that does not read keeps in memory."""


class Reply(Protocol):
    """`app.outgoing.Outgoing.reply`."""

    def __call__(self, message: ToPage | Frame, sent: Callable[[], None] = ...) -> None: ...


class Questions:
    """The questions of one page."""

    def __init__(self, engine: EngineClient, reply: Reply) -> None:
        self._engine = engine
        self._reply = reply
        self._lock = threading.Lock()
        self._n_under_way = 0

    def inspect(self, message: Inspect) -> None:
        """Ask the engine; the reply comes when it has answered. Raises `QueueFull`, and what
        `EngineClient.inspect` raises."""
        number, question = message.request, message.question
        kind = str(question.__struct_config__.tag)

        def answered(future: Future[Answer]) -> None:
            error = future.exception()
            if error is None:
                frame = Frame(number, kind, future.result(), self._engine.tokenizer)
                self._reply(frame, self._less)
            else:
                self._reply(error_about(error, request=number), self._less)

        self._more()
        try:
            future = self._engine.inspect(question)
        except BaseException:
            self._less()
            raise
        future.add_done_callback(answered)

    def answer(self, work: Callable[[], ToPage]) -> None:
        """Reply with what `work` gives at once. Raises `QueueFull`, and what it raises."""
        self._more()
        try:
            message = work()
        except BaseException:
            self._less()
            raise
        self._reply(message, self._less)

    def _more(self) -> None:
        with self._lock:
            if self._n_under_way >= MAX_UNDER_WAY:
                raise QueueFull(
                    f"{MAX_UNDER_WAY} questions of this page are under way, which is the most; "
                    "wait for an answer"
                )
            self._n_under_way += 1

    def _less(self) -> None:
        with self._lock:
            self._n_under_way -= 1


def error_about(error: BaseException, id: str = "", request: int | None = None) -> Error:
    """What to tell a page about what went wrong. What it should not be told is logged."""
    if isinstance(error, EngineError):
        return Error.of(error, id, request)
    log.error("a message could not be handled", exc_info=error)
    return Error("internal", "the server made a mistake; see its log", id, request=request)
