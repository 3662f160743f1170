"""Time for questions while runs write: no piece takes longer than a token, and all pieces together
no more time than the runs."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

from gpu.engine.row_costs import RowCosts

SHARE = 1.0
"""Time for questions, relative to the time for the runs meanwhile."""
PIECE_TOKENS = 1.0
"""Longest piece, in steps of the runs."""
FORGET = 0.98
"""See `RowCosts`; a time may include compiling shaders."""
LATEST = 31
"""Recent steps; their median is the expected time of a step."""


class QuestionBudget:
    """Measures steps and pieces; decides when the next piece may run and how many rows it may have.
    Used by the engine's thread alone."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.writing = False
        self._since = clock()
        self._debt = 0.0  # seconds that the runs must have before the next piece
        self._steps: deque[float] = deque(maxlen=LATEST)
        self._costs = RowCosts(FORGET)  # seconds of a piece
        self._asked: tuple[str, int] | None = None
        self._share = SHARE  # of the current piece

    def tick(self, writing: bool, *, stepped: bool) -> None:
        """Record that the runs had the time since the last tick or piece. `writing`: a run is
        active; `stepped`: exactly one step without a prompt chunk was taken."""
        now = self._clock()
        seconds, self._since = now - self._since, now
        self._repay(seconds)
        if stepped:
            self._steps.append(seconds)
        if not writing:
            self._debt = 0.0
        self.writing = writing

    @property
    def may_work(self) -> bool:
        """Return whether a question may continue."""
        return not self.writing or self._debt <= 0

    @contextmanager
    def piece(self) -> Iterator[None]:
        """Time a piece of a question."""
        self._asked, self._share, began = None, SHARE, self._clock()
        self._repay(began - self._since)
        try:
            yield
        finally:
            self._since = self._clock()
            self._learn(self._since - began)

    def set_share(self, share: float) -> None:
        """Let the current piece have `share` of the time of the runs instead of `SHARE`."""
        self._share = share

    def rows(self, kind: str, most: int) -> int:
        """Return how many rows the current piece may compute: a power of two, or `most`. Pieces of
        one `kind` are expected to cost the same."""
        n = most
        if self.writing and self._steps:
            n = self._costs.rows_within(kind, PIECE_TOKENS * median(self._steps), most)
        elif self.writing:
            n = 1
        self._asked = kind, n
        return n

    def _repay(self, seconds: float) -> None:
        """Reduce the debt by time that the runs had."""
        self._debt = max(0.0, self._debt - SHARE * seconds)

    def _learn(self, seconds: float) -> None:
        if self.writing:
            self._debt += seconds * SHARE / self._share
        if self._asked is None:
            return
        kind, n = self._asked
        self._costs.learn(kind, n, seconds)
