"""Pace of a run: how many tokens a second it writes, or one at a time as a person asks for them.

It decides only when a token is computed and sent. Which one it is depends on seed, index and logits
alone, so the ids are the same at any pace.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import msgspec

from gpu.errors import InvalidRequest

LEAST_PACE = 0.1
MOST_PACE = 1000.0
MOST_STEPS = 1000


class PaceChange(msgspec.Struct, frozen=True):
    """Change of the pace of a run.

    rate   tokens a second; 0: paused; None: full speed; unset: as before
    steps  tokens that a paused run writes in addition to those it was asked for before
    """

    rate: float | msgspec.UnsetType | None = msgspec.UNSET
    steps: int = 0

    def validate(self) -> PaceChange:
        """Return this change. Raises InvalidRequest for a number out of range."""
        check_pace(None if self.rate is msgspec.UNSET else self.rate)
        if isinstance(self.steps, bool) or not 0 <= self.steps <= MOST_STEPS:
            raise InvalidRequest(
                f"steps must be an integer from 0 to {MOST_STEPS}, but got {self.steps}", "steps"
            )
        return self

    def then(self, later: PaceChange) -> PaceChange:
        """Return the change that does what this one and `later` do."""
        steps = min(self.steps + later.steps, MOST_STEPS)
        if later.rate is msgspec.UNSET:
            return PaceChange(self.rate, steps)
        return PaceChange(later.rate, steps) if later.rate == 0 else later


def check_pace(rate: float | None) -> None:
    """Raise InvalidRequest for a pace out of range. NaN fails the comparisons as well."""
    if rate is not None and rate != 0 and not LEAST_PACE <= rate <= MOST_PACE:
        raise InvalidRequest(
            f"pace must be a number of tokens a second from {LEAST_PACE:g} to {MOST_PACE:g}, 0 to "
            f"pause, or null for full speed, but got {rate:g}",
            "pace",
        )


class RunPace:
    """Pace of one run, `rate` as in `PaceChange`.

    A paused run computes the next token too, as a preview: what it would be drawn from is sent,
    and the token itself once it may be written. Others compute a token when it is due.
    """

    def __init__(
        self, rate: float | None, n_written: int, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.rate = rate
        self._clock = clock
        self._end = n_written if rate == 0 else math.inf
        self.changed_at = clock()
        """Time by the clock of the last press or change."""
        self.due_at = 0.0
        """Time by the clock at which the next token is due; in the past while paused."""

    @property
    def limits(self) -> bool:
        """Return whether the run computes one token after another, the next when this was read."""
        return self.rate is not None

    def may_write(self, index: int) -> bool:
        """Return whether token `index` may be written: it was asked for, or nothing pauses."""
        return index < self._end

    @property
    def is_due(self) -> bool:
        """Return whether the time of the next token has come."""
        return self.due_at <= self._clock()

    def submitted(self) -> None:
        """Note that the next token is being computed."""
        if not self.rate:
            return
        now, period = self._clock(), 1 / self.rate
        is_late = now - self.due_at >= period  # so that no burst makes up for it
        self.due_at = (now if is_late else self.due_at) + period

    def change(self, change: PaceChange, n_submitted: int) -> None:
        """Change the pace. `n_submitted`: tokens that may be written whatever it is. Raises
        InvalidRequest for steps of a run that is not paused."""
        rate = self.rate if change.rate is msgspec.UNSET else change.rate
        if change.steps and rate != 0:
            raise InvalidRequest(
                "this run is not paused, so it cannot be stepped; send pace 0 with the steps",
                "steps",
            )
        if rate != self.rate:
            self._end = n_submitted if rate == 0 else math.inf
            self.due_at = 0.0
        self.rate = rate
        self._end += change.steps
        self.changed_at = self._clock()
