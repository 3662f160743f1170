"""Limited processes that are kept running, so that an ordinary request waits for no start."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable

from app.limited_process import LimitedProcess, OverLimit
from gpu import EngineError, QueueFull

log = logging.getLogger(__name__)

MOST_WAITING = 16
WAIT_SECONDS = 10.0

Start = Callable[[], LimitedProcess]
"""Starts a process and returns it when it can be asked. Raises OverLimit or an EngineError."""


class LimitedPool:
    """Up to `n_processes`, each of which answers one request at a time. One that goes over its
    limits is replaced by another at once. `busy`: what to tell who cannot be answered."""

    def __init__(self, start: Start, n_processes: int, busy: str) -> None:
        self._start = start
        self.n_processes = n_processes
        self._busy = busy
        self._changed = threading.Condition()
        self._idle: list[LimitedProcess] = []
        self._n_there = 0  # idle, at work or starting
        self._n_waiting = 0

    def call(self, request: bytes, seconds: float) -> bytes:
        """The answer of one of the processes. Raises OverLimit, what `start` raises, and QueueFull
        while too many wait."""
        process = self._take()
        try:
            return process.call(request, seconds)
        finally:
            self._give_back(process)

    def add(self, process: LimitedProcess) -> None:
        """Take over a process that was started already."""
        with self._changed:
            self._n_there += 1
        self._give_back(process)

    def warm(self) -> None:
        """Have all processes started, in the background."""
        with self._changed:
            missing = self.n_processes - self._n_there
            self._n_there += missing
        for _ in range(missing):
            _start_in_background(weakref.ref(self))

    def close(self) -> None:
        """End the processes that have nothing to do. A request that comes later starts another."""
        with self._changed:
            idle, self._idle = self._idle, []
            self._n_there -= len(idle)
        for process in idle:
            process.end()

    def _take(self) -> LimitedProcess:
        """A process, for the caller alone."""
        with self._changed:
            if not self._is_there():
                self._wait()
            while self._idle:
                process = self._idle.pop()
                if process.alive:
                    return process
                self._n_there -= 1
            self._n_there += 1
        return self._started()

    def _is_there(self) -> bool:
        return bool(self._idle) or self._n_there < self.n_processes

    def _wait(self) -> None:
        """Until there is a process, or room for one."""
        if self._n_waiting >= MOST_WAITING:
            raise QueueFull(f"{self._busy}; try again in a moment")
        self._n_waiting += 1
        try:
            if not self._changed.wait_for(self._is_there, WAIT_SECONDS):
                raise QueueFull(f"{self._busy}; try again in a moment")
        finally:
            self._n_waiting -= 1

    def _started(self) -> LimitedProcess:
        """One that is counted already."""
        try:
            return self._start()
        except BaseException:
            self._forget()
            raise

    def _forget(self) -> None:
        with self._changed:
            self._n_there -= 1
            self._changed.notify()

    def _give_back(self, process: LimitedProcess) -> None:
        if not process.alive:
            _start_in_background(weakref.ref(self))
            return
        with self._changed:
            self._idle.append(process)
            self._changed.notify()

    def _replace(self) -> None:
        """Start a process that is counted already."""
        try:
            process = self._started()
        except (OverLimit, EngineError) as error:  # who asks next is told
            log.debug("a limited process cannot be started: %s", error)
            return
        if process.alive:
            self._give_back(process)
        else:
            self._forget()


def _start_in_background(pool: weakref.ref[LimitedPool]) -> None:
    """For a pool that may be gone before that is done."""

    def start() -> None:
        found = pool()
        if found is not None:
            found._replace()

    threading.Thread(target=start, name="start process", daemon=True).start()
