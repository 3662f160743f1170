"""Places of an engine: how many runs may run or wait at once, and how many may be paused.

A paused run (`gpu.pace`) takes no place of the others. If there are too many, the one that nobody
has touched for longest ends: its text stays, and can be continued from its ids.
"""

from __future__ import annotations

import threading
from typing import Generic, Protocol, TypeVar

from gpu.errors import QueueFull

ENDED_IN_PAUSE = (
    "this server keeps a limited number of texts paused, and this one had been paused longest; "
    "press Continue to go on from here"
)


class PausableRun(Protocol):
    """A run that may be paused."""

    @property
    def paused_since(self) -> float | None:
        """Time of the last press or change of pace if the run is paused now, else None."""

    def end_paused(self) -> None:
        """End the run if it is still paused. Called by any thread; must not block."""


R = TypeVar("R", bound=PausableRun)


class Places(Generic[R]):
    """Places of `most` runs, and of as many paused ones. `full` follows their number in the refusal
    of another. Thread-safe."""

    def __init__(self, most: int, full: str) -> None:
        self._most = most
        self._full = full
        self._lock = threading.Lock()
        self._runs: dict[R, None] = {}

    @property
    def runs(self) -> tuple[R, ...]:
        """Return those that have a place."""
        with self._lock:
            return tuple(self._runs)

    def take(self, run: R) -> None:
        """Give a run a place. Raises QueueFull."""
        with self._lock:
            paused = self._paused()
            if (n := len(self._runs) - len(paused)) >= self._most:
                raise QueueFull(f"{n} {self._full}; try again in a moment")
            self._runs[run] = None
            paused = self._paused()
        if len(paused) > self._most:
            min(paused, key=lambda run: paused[run]).end_paused()

    def release(self, run: R) -> None:
        """Free the place of a run that has ended, if it has one."""
        with self._lock:
            self._runs.pop(run, None)

    def _paused(self) -> dict[R, float]:
        return {run: since for run in self._runs if (since := run.paused_since) is not None}
