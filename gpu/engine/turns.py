"""Work in pieces, taken in turns: questions that go on between the steps of the runs."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any, TypeVar

import msgspec

from gpu.errors import EngineError
from gpu.inspection import Answer

T = TypeVar("T")


class Turns:
    """Pieces of work under way, in turns, and who waits for their values. Who cancels its future
    before it has a value ends the work."""

    def __init__(self) -> None:
        self._under_way: deque[tuple[Generator[None, None, Any], Future[Any]]] = deque()

    def __bool__(self) -> bool:
        return bool(self._under_way)

    def add(self, pieces: Generator[None, None, T], value: Future[T]) -> None:
        self._under_way.append((pieces, value))

    def advance(self) -> None:
        """One piece of the next one. What goes wrong is told to who waits; what is no EngineError
        is raised as well."""
        pieces, value = self._under_way.popleft()
        if value.cancelled():
            pieces.close()
            return
        try:
            next(pieces)
        except StopIteration as done:
            if value.set_running_or_notify_cancel():
                value.set_result(done.value)
        except Exception as error:
            _fail(value, error)
            if not isinstance(error, EngineError):
                raise
        else:
            self._under_way.append((pieces, value))

    def refuse(self, error: EngineError) -> None:
        """Answer all that wait with `error`."""
        while self._under_way:
            pieces, value = self._under_way.popleft()
            pieces.close()
            _fail(value, error)


def _fail(value: Future[Any], error: Exception) -> None:
    if value.set_running_or_notify_cancel():
        value.set_exception(error)


def unless(
    over: Callable[[], bool], pieces: Generator[None, None, T]
) -> Generator[None, None, T | None]:
    """What `pieces` come to; None once `over`, and the rest of them is left undone."""
    while not over():
        try:
            next(pieces)
        except StopIteration as done:
            value: T = done.value
            return value
        yield
    pieces.close()
    return None


def timed(pieces: Generator[None, None, Answer]) -> Generator[None, None, Answer]:
    """The same, with the milliseconds from its first piece to its end as info["ms"]."""
    began = time.perf_counter()
    answer = yield from pieces
    ms = (time.perf_counter() - began) * 1e3
    return msgspec.structs.replace(answer, info={**answer.info, "ms": ms})
