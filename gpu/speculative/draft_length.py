"""Number of drafts in a step: the one with most expected tokens per second, which may be 0."""

from __future__ import annotations

from collections.abc import Callable

MAX_DRAFTS = 7
"""Most drafts of a sequence in one step: with the token before them, 8 rows."""

FIRST_GUESS = 0.7
"""Share of drafts that are accepted, before any was verified."""

WEIGHT = 0.15
"""Weight of a verified draft in the estimated share."""

DECAY = 0.004
"""How much the estimate goes back towards `FIRST_GUESS` with every token for which drafts were
found: where they were not worth their time, the text may have become easier to guess."""

LEAST_GAIN = 1.05
"""Drafts must be expected to write this many times faster: a step with drafts is submitted only
after the one before was read."""

Cost = Callable[[int], float | None]
"""Returns the milliseconds of a step that decodes so many rows; None if none was timed."""


def free_of_charge(n: int) -> float:
    """Return the milliseconds that n drafts take to make if they are looked up."""
    return 0.0


class DraftLength:
    """Estimate of one sequence's acceptance, and the number of drafts that follows from it.
    `drafting_ms`: returns the milliseconds that so many drafts take to make, like `Cost`."""

    def __init__(self, cost: Cost, drafting_ms: Cost = free_of_charge) -> None:
        self._cost = cost
        self._drafting_ms = drafting_ms
        self._accepted = FIRST_GUESS

    def choose(self, most: int, n_beside: int) -> int:
        """Return how many of `most` drafts to verify beside `n_beside` rows of other sequences."""
        alone = self._cost(n_beside + 1)
        best, best_rate = 0, LEAST_GAIN
        for n in sorted({n for n in (1, 3, MAX_DRAFTS, most) if n <= min(most, MAX_DRAFTS)}):
            verifying, drafting = self._cost(n_beside + 1 + n), self._drafting_ms(n)
            if not alone or not verifying or drafting is None:
                return min(most, MAX_DRAFTS)  # not timed yet, or by a clock that stands still
            tokens = n_beside + self.expected_tokens(n)
            rate = tokens / (n_beside + 1) * alone / (verifying + drafting)
            if rate > best_rate:
                best, best_rate = n, rate
        return best

    def decay_to_first_guess(self) -> None:
        """Forget a little of what was learned. Called for every token that drafts are found for."""
        self._accepted += DECAY * (FIRST_GUESS - self._accepted)

    def expected_tokens(self, n: int) -> float:
        """Return the tokens that a step with `n` drafts is expected to write: every accepted draft,
        and the one after them."""
        return sum(self._accepted**i for i in range(n + 1))

    def learn(self, n_verified: int, n_accepted: int) -> None:
        """Record that the first `n_accepted` of `n_verified` drafts were accepted. Those after a
        rejected one say nothing."""
        for i in range(min(n_verified, n_accepted + 1)):
            self._accepted += WEIGHT * ((i < n_accepted) - self._accepted)
