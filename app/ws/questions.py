"""Questions that a page asks: their limits, answers and errors."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

from app.engine_client import ASKER_IDS, EngineClient
from app.protocol.messages import MAX_QUESTIONS, Error, Inspect, ToPage
from app.ws.frames import Frame
from gpu import EngineError, QueueFull
from gpu.inspection.requests import Answer

log = logging.getLogger(__name__)

MAX_PAGE_BYTES = 128 << 20
MAX_TOTAL_BYTES = 512 << 20
"""Answers that wait to be sent to one page, and to all; with these in memory no question is asked.
"""


class Reply(Protocol):
    """`app.ws.send_queue.SendQueue.reply`."""

    def __call__(self, message: ToPage | Frame, sent: Callable[[], None] = ...) -> None: ...


class ByteCounter:
    """Bytes of answers that wait to be sent."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.n = 0

    def add(self, n: int) -> None:
        with self._lock:
            self.n += n


TOTAL_BYTES = ByteCounter()


class Questions:
    """The questions of one page. `total`: the answers of every page."""

    def __init__(
        self, engine: EngineClient, reply: Reply, total: ByteCounter = TOTAL_BYTES
    ) -> None:
        self._engine = engine
        self._reply = reply
        self._asker = next(ASKER_IDS)
        self._lock = threading.Lock()
        self._n_in_flight = 0
        self._bytes = ByteCounter()
        self._total = total
        self._closed = False

    def inspect(self, message: Inspect) -> None:
        """Ask the engine, or the one that the message names; the reply comes when it has answered.
        Raises `QueueFull`, and what `EngineClient.replica` and `EngineClient.inspect` raise."""
        number, question = message.request, message.question
        engine = self._engine.replica(message.engine) if message.engine else self._engine
        kind = str(question.__struct_config__.tag)

        def on_answer(future: Future[Answer]) -> None:
            error = future.exception()
            if error is None:
                frame = Frame(number, kind, future.result(), self._engine.tokenizer)
                n_bytes = sum(len(array.data) for array in frame.answer.arrays)
                self._count_bytes(n_bytes)
                self._reply(frame, lambda: self._sent(n_bytes))
            else:
                self._reply(error_about(error, request=number), self._finish)

        self._begin()
        try:
            future = engine.inspect(question, self._asker)
        except BaseException:
            self._finish()
            raise
        future.add_done_callback(on_answer)

    def answer(self, work: Callable[[], ToPage]) -> None:
        """Reply with what `work` gives at once. Raises `QueueFull`, and what it raises."""
        self._begin()
        try:
            message = work()
        except BaseException:
            self._finish()
            raise
        self._reply(message, self._finish)

    def close(self) -> None:
        """Cancel the questions of the page, because it is gone, and drop its answers."""
        with self._lock:
            self._closed = True
            self._total.add(-self._bytes.n)
            self._bytes.n = 0
        self._engine.cancel_questions(self._asker)

    def _count_bytes(self, n_bytes: int) -> None:
        with self._lock:
            if not self._closed:
                self._bytes.add(n_bytes)
                self._total.add(n_bytes)

    def _sent(self, n_bytes: int) -> None:
        self._count_bytes(-n_bytes)
        self._finish()

    def _begin(self) -> None:
        with self._lock:
            for held, most, whose in (
                (self._bytes.n, MAX_PAGE_BYTES, "this page"),
                (self._total.n, MAX_TOTAL_BYTES, "all pages"),
            ):
                if held > most:
                    raise QueueFull(
                        f"answers of {held:,} bytes wait to be sent to {whose}, and the limit is "
                        f"{most:,}; read them, then ask again"
                    )
            if self._n_in_flight >= MAX_QUESTIONS:
                raise QueueFull(
                    f"{MAX_QUESTIONS} questions of this page are being answered, the most at a "
                    "time; wait for an answer"
                )
            self._n_in_flight += 1

    def _finish(self) -> None:
        with self._lock:
            self._n_in_flight -= 1


def error_about(error: BaseException, id: str = "", request: int | None = None) -> Error:
    """Return the message for an error. Internal errors are logged, not sent."""
    if isinstance(error, EngineError):
        return Error.of(error, id, request)
    log.error("a message could not be handled", exc_info=error)
    return Error("internal", "the server made a mistake; see its log", id, request=request)
