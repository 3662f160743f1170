"""Measured times of work on some rows, and how many rows fit into a time."""

from __future__ import annotations

from collections.abc import Hashable
from math import log2

GROWTH = 1.5
"""Expected ratio of times when the rows double and the larger size was never timed: rows share the
reading of the weights."""


class RowCosts:
    """Times of work by its kind and number of rows, rounded up to a power of two. Work of one kind
    is expected to cost the same."""

    def __init__(self, forget: float) -> None:
        """`forget`: every measurement multiplies the known time of twice as many rows by this, so
        that the larger size is tried again."""
        self._forget = forget
        self._by_kind: dict[Hashable, dict[int, float]] = {}

    def expected(self, kind: Hashable, n: int) -> float | None:
        """Return the expected time of `n` rows; None if no number of rows was timed. Fewer rows
        than were ever timed may take as long: nobody knows what one row takes."""
        times = self._by_kind.get(kind)
        if not times:
            return None
        n = _rounded(n)
        nearest = max((m for m in times if m <= n), default=min(times))
        return times[nearest] * max(1.0, float(GROWTH ** log2(n / nearest)))

    def learn(self, kind: Hashable, n: int, time: float) -> None:
        """Record that `n` rows took `time`."""
        times, n = self._by_kind.setdefault(kind, {}), _rounded(n)
        old = times.get(n)
        new = times[n] = time if old is None or time < old else 0.5 * (old + time)
        if (larger := times.get(2 * n)) is not None:
            times[2 * n] = max(new, self._forget * larger)

    def rows_within(self, kind: Hashable, limit: float, most: int, least: int = 1) -> int:
        """Return how many rows are expected to take at most `limit`: a power of two or `most`, at
        least one; `least` if nothing of this kind was timed."""
        n = 1
        if self.expected(kind, n) is None:
            return min(least, most)
        while n < most:
            larger = min(2 * n, most)
            expected = self.expected(kind, larger)
            if expected is None or expected > limit:
                break
            n = larger
        return n


def _rounded(n: int) -> int:
    return 1 << (n - 1).bit_length()
