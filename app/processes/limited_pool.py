"""Pool of limited processes that keep running, so that requests need not wait for a start."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable

from app.processes.limited_process import LimitedProcess, LimitExceeded
from gpu import EngineError, QueueFull

log = logging.getLogger(__name__)

MAX_WAITING = 16
WAIT_SECONDS = 10.0

Start = Callable[[], LimitedProcess]
"""Starts a process and returns it once it is ready. Raises LimitExceeded or an EngineError."""


class LimitedPool:
    """Pool of up to `n_processes`, each of which answers one request at a time.

    A process that exceeds its limits is replaced at once. `busy` is the message of QueueFull.
    """

    def __init__(self, start: Start, n_processes: int, busy: str) -> None:
        self._start = start
        self.n_processes = n_processes
        self._busy = busy
        self._changed = threading.Condition()
        self._idle: list[LimitedProcess] = []
        self._n_started = 0  # idle, busy or starting
        self._n_waiting = 0

    def call(self, request: bytes, seconds: float) -> bytes:
        """Return the reply of one of the processes. Raises LimitExceeded, the errors of `start`,
        and QueueFull if too many requests wait."""
        process = self._acquire()
        try:
            return process.call(request, seconds)
        finally:
            self._release(process)

    def add(self, process: LimitedProcess) -> None:
        """Add a process that was started elsewhere."""
        with self._changed:
            self._n_started += 1
        self._release(process)

    def warm(self) -> None:
        """Start all processes in the background."""
        with self._changed:
            missing = self.n_processes - self._n_started
            self._n_started += missing
        for _ in range(missing):
            _start_in_background(weakref.ref(self))

    def close(self) -> None:
        """End the idle processes. A later request starts a new one."""
        with self._changed:
            idle, self._idle = self._idle, []
            self._n_started -= len(idle)
        for process in idle:
            process.end()

    def _acquire(self) -> LimitedProcess:
        """Return a process for the caller's exclusive use."""
        with self._changed:
            if not self._is_available():
                self._wait()
            while self._idle:
                process = self._idle.pop()
                if process.alive:
                    return process
                self._n_started -= 1
            self._n_started += 1
        return self._start_counted()

    def _is_available(self) -> bool:
        return bool(self._idle) or self._n_started < self.n_processes

    def _wait(self) -> None:
        """Wait until a process is idle or another one may be started. Raises QueueFull."""
        if self._n_waiting >= MAX_WAITING:
            raise QueueFull(f"{self._busy}; try again in a moment")
        self._n_waiting += 1
        try:
            if not self._changed.wait_for(self._is_available, WAIT_SECONDS):
                raise QueueFull(f"{self._busy}; try again in a moment")
        finally:
            self._n_waiting -= 1

    def _start_counted(self) -> LimitedProcess:
        """Start a process that is counted in `_n_started` already."""
        try:
            return self._start()
        except BaseException:
            self._uncount()
            raise

    def _uncount(self) -> None:
        with self._changed:
            self._n_started -= 1
            self._changed.notify()

    def _release(self, process: LimitedProcess) -> None:
        if not process.alive:
            _start_in_background(weakref.ref(self))
            return
        with self._changed:
            self._idle.append(process)
            self._changed.notify()

    def _replace(self) -> None:
        """Start the replacement of a process; it is counted already."""
        try:
            process = self._start_counted()
        except (LimitExceeded, EngineError) as error:  # the next request gets this error
            log.debug("a limited process cannot be started: %s", error)
            return
        if process.alive:
            self._release(process)
        else:
            self._uncount()


def _start_in_background(pool: weakref.ref[LimitedPool]) -> None:
    """Start a process for `pool`, which may be garbage-collected meanwhile."""

    def start() -> None:
        alive = pool()
        if alive is not None:
            alive._replace()

    threading.Thread(target=start, name="start process", daemon=True).start()
