"""Cost model of steps: measured times by number of rows, and how many rows fit into a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from math import log2

GROWTH = 1.5
"""Expected ratio of times when the rows double and the larger size was never timed: rows share the
reading of the weights."""
LATEST = 3
"""Times of a size that are kept. The least of them is expected: a machine that does other work too
is late now and then, and one late step says little about the next."""
FORGET_UNSURE = 0.9
"""Instead of `forget` while a size was timed less often than that."""


@dataclass(slots=True)
class _Timed:
    """Latest times of one size. `trust`: factor that falls while the size is not timed again."""

    times: deque[float] = field(default_factory=lambda: deque(maxlen=LATEST))
    trust: float = 1.0

    @property
    def expected(self) -> float:
        return self.trust * min(self.times)

    def learn(self, time: float) -> None:
        self.times.append(time)
        self.trust = 1.0

    def forget(self, forget: float, half: float) -> None:
        """Expect less, by `forget`. If the size was timed only once or twice, expect at most twice
        `half`, the time of half the rows: two such steps would do the same."""
        if not self.expected:
            return  # a coarse clock may say 0
        sure = len(self.times) == LATEST
        expected = max(half, (forget if sure else FORGET_UNSURE) * self.expected)
        if not sure:
            expected = min(expected, 2 * half)
        self.trust *= expected / self.expected


class RowCosts:
    """Times of work by its kind and number of rows, rounded up to a power of two. Work of one kind
    is expected to cost the same."""

    def __init__(self, forget: float) -> None:
        """`forget`: every measurement multiplies the known time of twice as many rows by this, so
        that the larger size is tried again."""
        self._forget = forget
        self._by_kind: dict[Hashable, dict[int, _Timed]] = {}

    def expected(self, kind: Hashable, n: int) -> float | None:
        """Return the expected time of `n` rows; None if no number of rows was timed. Fewer rows
        than were ever timed may take as long: nobody knows what one row takes."""
        sizes = self._by_kind.get(kind)
        if not sizes:
            return None
        n = rounded(n)
        nearest = max((m for m in sizes if m <= n), default=min(sizes))
        return sizes[nearest].expected * max(1.0, float(GROWTH ** log2(n / nearest)))

    def learn(self, kind: Hashable, n: int, time: float) -> None:
        """Record that `n` rows took `time`."""
        sizes, n = self._by_kind.setdefault(kind, {}), rounded(n)
        size = sizes.setdefault(n, _Timed())
        size.learn(time)
        if 2 * n in sizes:
            sizes[2 * n].forget(self._forget, size.expected)

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


def rounded(n: int) -> int:
    """Return `n` rounded up to a power of two, as the rows of recorded plans are."""
    return 1 << (n - 1).bit_length()
