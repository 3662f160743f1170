"""Finishing and submitting steps on a thread of its own, in order.

wgpu validates and translates a command buffer in `finish`, for most of the time that a step takes
the host. Native calls release the interpreter lock, so the next step is recorded meanwhile.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread

Tasks = SimpleQueue[tuple[Callable[[], None], Future[None]] | None]


class Submissions:
    """Tasks that submit to one device. The thread that posts them calls `settle` before it writes
    or submits anything itself: the device does things in the order of these calls."""

    def __init__(self) -> None:
        self._tasks: Tasks = SimpleQueue()
        self._thread: Thread | None = None
        self._last: Future[None] | None = None

    def post(self, task: Callable[[], None]) -> Future[None]:
        """Run a task after those before it. Once one has failed, all others fail like it."""
        if self._thread is None:
            # A daemon: a driver that hangs must not keep the process from ending.
            self._thread = Thread(
                target=_run, args=(self._tasks,), name="tokenglass submissions", daemon=True
            )
            self._thread.start()
            weakref.finalize(self, self._tasks.put, None)
        self._last = done = Future[None]()
        self._tasks.put((task, done))
        return done

    def settle(self) -> None:
        """Wait for the tasks so far. Raises the error of the first that failed."""
        if self._last is not None:
            self._last.result()
            self._last = None

    def close(self) -> None:
        """Wait for the tasks so far, and end the thread."""
        if self._thread is not None:
            self._tasks.put(None)
            self._thread.join()


def _run(tasks: Tasks) -> None:
    failed: BaseException | None = None
    while (posted := tasks.get()) is not None:
        task, done = posted
        if failed is None:
            try:
                task()
            except BaseException as error:
                failed = error
        if failed is None:
            done.set_result(None)
        else:
            done.set_exception(failed)
        del posted, task, done  # what they hold must not live until the next task
