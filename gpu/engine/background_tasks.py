"""Background work, done in pieces between the steps of the runs: tasks that runs wait for, and
questions."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Hashable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from gpu.engine.answers import answer, refuse
from gpu.errors import EngineError, InvalidRequest, QueueFull
from gpu.inspection.requests import Answer

T = TypeVar("T")

MAX_QUESTIONS = 64
"""Most questions that are waiting or being answered."""
MAX_ASKERS = 2 * MAX_QUESTIONS
"""Limit for an asker who has no question in the queue yet, so that one asker cannot shut out the
others."""


@dataclass(slots=True)
class Task:
    """Unfinished work and the future of its value; cancelling the future ends the work.
    `n_blocks`: KV blocks that it holds while it runs."""

    pieces: Generator[None, None, Any]
    value: Future[Any]
    n_blocks: int = 0
    begun: bool = False

    def advance(self) -> bool:
        """Do one piece; return False if that was the last. An exception is set on the future; one
        that is no EngineError is also raised."""
        self.begun = True
        if self.value.cancelled():
            self.value.set_running_or_notify_cancel()
            self.pieces.close()
            return False
        try:
            next(self.pieces)
        except StopIteration as done:
            answer(self.value, done.value)
            return False
        except Exception as error:
            refuse(self.value, error)
            if not isinstance(error, EngineError):
                raise
            return False
        return True

    def refuse(self, error: EngineError) -> None:
        """End the work and answer with `error`."""
        self.pieces.close()
        refuse(self.value, error)


class BackgroundTasks:
    """Tasks that runs wait for, advanced round-robin."""

    def __init__(self) -> None:
        self._under_way: deque[Task] = deque()

    def __bool__(self) -> bool:
        return bool(self._under_way)

    def add(self, pieces: Generator[None, None, T], value: Future[T]) -> None:
        self._under_way.append(Task(pieces, value))

    def advance(self) -> None:
        """Do one piece of the next task."""
        task = self._under_way.popleft()
        if task.advance():
            self._under_way.append(task)

    def refuse(self, error: EngineError) -> None:
        """End all tasks with `error`."""
        while self._under_way:
            self._under_way.popleft().refuse(error)


class QuestionQueue:
    """Questions in order of arrival per asker; askers take turns, one piece each.

    Several questions are under way only while the KV cache holds the tokens of all of them.
    Otherwise each would evict the tokens of the others and compute its own again and again.
    `free_blocks` returns the number of blocks for all questions.
    """

    def __init__(self, free_blocks: Callable[[], int]) -> None:
        self._free_blocks = free_blocks
        self._line: deque[tuple[Hashable, deque[Task]]] = deque()

    def __bool__(self) -> bool:
        return bool(self._line)

    def __len__(self) -> int:
        return sum(len(tasks) for _, tasks in self._line)

    def add(
        self,
        pieces: Generator[None, None, T],
        value: Future[T],
        asker: Hashable = None,
        n_blocks: int = 0,
    ) -> None:
        """Append a question. Raises QueueFull if too many wait."""
        tasks = next((tasks for other, tasks in self._line if other == asker), None)
        if len(self) >= (MAX_ASKERS if tasks is None else MAX_QUESTIONS):
            pieces.close()
            raise QueueFull(
                f"{len(self)} questions wait for an answer, the most this server takes; try again "
                "in a moment"
            )
        if tasks is None:
            tasks = deque()
            self._line.append((asker, tasks))
        tasks.append(Task(pieces, value, n_blocks))

    def advance(self) -> None:
        """Do one piece for the next asker whose question can go on."""
        place = self._next()
        asker, tasks = self._line[place]
        del self._line[place]
        try:
            if not tasks[0].advance():
                tasks.popleft()
        except BaseException:
            tasks.popleft()
            raise
        finally:
            if tasks:
                self._line.append((asker, tasks))

    def cancel(self, asker: Hashable) -> None:
        """End all questions of an asker."""
        for place, (other, tasks) in enumerate(self._line):
            if other == asker:
                del self._line[place]
                for task in tasks:
                    task.refuse(InvalidRequest("nobody waits for this answer any more"))
                return

    def refuse(self, error: EngineError) -> None:
        """End all questions with `error`."""
        while self._line:
            for task in self._line.popleft()[1]:
                task.refuse(error)

    def _next(self) -> int:
        """Return the index of the first asker whose question has begun or may begin. No question
        begins before one that has waited longer for free blocks."""
        free = self._free_blocks() - sum(t[0].n_blocks for _, t in self._line if t[0].begun)
        may_begin = True
        for place, (_, tasks) in enumerate(self._line):
            first = tasks[0]
            if first.begun or first.value.cancelled():
                return place
            if may_begin and first.n_blocks <= free:
                return place
            may_begin = False
        return 0  # none is under way: the first gets all blocks there are


def run_until(
    over: Callable[[], bool], pieces: Generator[None, None, T]
) -> Generator[None, None, T | None]:
    """Run `pieces` and return their value; stop and return None as soon as `over()` is true."""
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
    """Run `pieces` and add the milliseconds from the first piece to the end as info["ms"]."""
    began = time.perf_counter()
    answer = yield from pieces
    ms = (time.perf_counter() - began) * 1e3
    return msgspec.structs.replace(answer, info={**answer.info, "ms": ms})
