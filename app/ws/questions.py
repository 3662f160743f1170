"""What a page asks and is answered once, however late: how many at a time, and what goes wrong."""

from __future__ import annotations

import itertools
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
make the engine do."""
MAX_PAGE_BYTES = 128 << 20
MAX_BYTES = 512 << 20
"""Answers that wait to be sent to one page, and to all; with these in memory no question is asked.
"""


ASKERS = itertools.count(1)


class Reply(Protocol):
    """`app.outgoing.Outgoing.reply`."""

    def __call__(self, message: ToPage | Frame, sent: Callable[[], None] = ...) -> None: ...


class AnswerBytes:
    """Bytes of answers that wait to be sent."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.n = 0

    def add(self, n: int) -> None:
        with self._lock:
            self.n += n


ALL_PAGES = AnswerBytes()


class Questions:
    """The questions of one page. `in_all`: the answers of every page."""

    def __init__(self, engine: EngineClient, reply: Reply, in_all: AnswerBytes = ALL_PAGES) -> None:
        self._engine = engine
        self._reply = reply
        self._asker = next(ASKERS)
        self._lock = threading.Lock()
        self._n_under_way = 0
        self._bytes = AnswerBytes()
        self._in_all = in_all
        self._closed = False

    def inspect(self, message: Inspect) -> None:
        """Ask the engine; the reply comes when it has answered. Raises `QueueFull`, and what
        `EngineClient.inspect` raises."""
        number, question = message.request, message.question
        kind = str(question.__struct_config__.tag)

        def answered(future: Future[Answer]) -> None:
            error = future.exception()
            if error is None:
                frame = Frame(number, kind, future.result(), self._engine.tokenizer)
                n_bytes = sum(len(array.data) for array in frame.answer.arrays)
                self._hold(n_bytes)
                self._reply(frame, lambda: self._sent(n_bytes))
            else:
                self._reply(error_about(error, request=number), self._less)

        self._more()
        try:
            future = self._engine.inspect(question, self._asker)
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

    def close(self) -> None:
        """The page is gone: nothing is worked out for it any more, and no answer is kept."""
        with self._lock:
            self._closed = True
            self._in_all.add(-self._bytes.n)
            self._bytes.n = 0
        self._engine.forget(self._asker)

    def _hold(self, n_bytes: int) -> None:
        with self._lock:
            if not self._closed:
                self._bytes.add(n_bytes)
                self._in_all.add(n_bytes)

    def _sent(self, n_bytes: int) -> None:
        self._hold(-n_bytes)
        self._less()

    def _more(self) -> None:
        with self._lock:
            for held, most, whose in (
                (self._bytes.n, MAX_PAGE_BYTES, "this page"),
                (self._in_all.n, MAX_BYTES, "all pages"),
            ):
                if held > most:
                    raise QueueFull(
                        f"answers of {held:,} bytes wait to be sent to {whose}, and {most:,} are "
                        "the most; read them, then ask again"
                    )
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
