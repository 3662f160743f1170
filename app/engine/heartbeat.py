"""Watch over the engine's process: one that is frozen, hangs or does not end is killed.

Time is counted in beats, not by a clock: while a laptop sleeps or Ctrl+Z stops the whole server, no
time passes for the engine either.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from app.engine.pipe import CLOSE_SECONDS, HEARTBEAT_SECONDS

STILL_LOADING = "it is no longer wanted and was still loading"
"""The reason for which a process is killed that has nothing to finish: no fault of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeouts:
    """Timeouts for the engine's process, in seconds.

    silent   without a beat, once the engine is ready
    loading  without a beat before that: importing and reading files can hold Python's lock
    progress without a word about how far loading is
    step     in one step of the engine; one that compiles kernels or has many rows is slow
    close    to end after it was asked to, once the engine is ready; it ends itself after
             `CLOSE_SECONDS` if it can
    """

    silent: float = 10.0
    loading: float = 60.0
    progress: float = 900.0
    step: float = 180.0
    close: float = CLOSE_SECONDS + 0.5


class Watchdog:
    """Calls `kill` with the reason, once, from a thread of its own. `heard` and `heartbeat` are
    called by the thread that reads the pipe."""

    def __init__(self, timeouts: Timeouts, kill: Callable[[str], None]) -> None:
        self._timeouts = timeouts
        self._kill = kill
        self._ready = False
        self._n_silent = 0  # beats that did not come
        self._n_same = 0  # beats that came from the same step
        self._busy_since: float | None = None
        self._close_by: float | None = None
        self._wake = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def heard(self) -> None:
        """Any message is a sign of life of the process."""
        self._n_silent = 0

    def heartbeat(self, busy_since: float | None) -> None:
        """The engine is in a step that began at `busy_since`, by its own clock."""
        same = busy_since is not None and busy_since == self._busy_since
        self._n_same = self._n_same + 1 if same else 0
        self._busy_since = busy_since

    def ready(self) -> None:
        """The model is loaded: from now on the process answers at once."""
        self._n_same = 0
        self._ready = True

    def closing(self) -> None:
        """The process was asked to end."""
        if self._close_by is None:
            self._close_by = time.monotonic() + (self._timeouts.close if self._ready else 0.0)
        self._wake.set()

    def stop(self) -> None:
        """The process has ended."""
        self._stopped = True
        self._wake.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _watch(self) -> None:
        while not self._stopped:
            woken = self._wake.wait(self._seconds_left())
            self._wake.clear()
            self._n_silent += not woken
            reason = self._reason()
            if reason and not self._stopped:
                self._kill(reason)
                return

    def _seconds_left(self) -> float:
        """Until the next look."""
        if self._close_by is None:
            return HEARTBEAT_SECONDS
        return min(HEARTBEAT_SECONDS, max(0.0, self._close_by - time.monotonic()))

    def _reason(self) -> str | None:
        """Return why the process must be killed; None while it need not."""
        timeouts = self._timeouts
        if self._close_by is not None and time.monotonic() >= self._close_by:
            if not self._ready:
                return STILL_LOADING
            return f"it did not end within {timeouts.close:g} s"
        silent = timeouts.silent if self._ready else timeouts.loading
        if self._n_silent * HEARTBEAT_SECONDS > silent:
            return f"it was frozen: no sign of life for {silent:g} s"
        hung = timeouts.step if self._ready else timeouts.progress
        if self._n_same * HEARTBEAT_SECONDS > hung:
            what = "one step on the GPU" if self._ready else "loading the model"
            return f"{what} hung: nothing happened for {hung:g} s"
        return None
