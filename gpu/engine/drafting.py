"""Speculative decoding of one sequence (Leviathan et al. 2023; Chen et al. 2023).

A step takes the sequence's last token and drafts of the next ones as rows, and samples after each.
A draft is accepted if it is the very token that was sampled there: every draw depends on the seed,
its index and the logits alone, so the text has the ids that it has without drafts, at any
temperature. For drafts that are no samples themselves this accepts as often as rejection sampling
does: with the probability that the model gives them.

The tokens after a rejected draft are discarded. Their keys and values stay behind the end of the
text until they are overwritten.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import takewhile

import msgspec

from gpu.events import Timings
from gpu.speculation.draft_length import MAX_DRAFTS, Cost, DraftLength
from gpu.speculation.ngram import NgramDrafter


@dataclass(slots=True)
class DraftCounts:
    """Verified drafts of a run, by their place: `proposed[0]` counts those that were the first of
    their step.

    n_steps   steps that verified any
    spent_ms  time of these steps
    plain_ms  expected time of their tokens one by one
    """

    proposed: list[int] = field(default_factory=lambda: [0] * MAX_DRAFTS)
    accepted: list[int] = field(default_factory=lambda: [0] * MAX_DRAFTS)
    n_steps: int = 0
    spent_ms: float = 0.0
    plain_ms: float = 0.0

    def added_to(self, timings: Timings) -> Timings:
        """Return `timings` with these drafts."""
        return msgspec.structs.replace(
            timings,
            draft_n=sum(self.proposed),
            draft_n_accepted=sum(self.accepted),
            draft_n_by_position=tuple(self.proposed),
            draft_n_accepted_by_position=tuple(self.accepted),
            draft_speedup=self.plain_ms / self.spent_ms if self.spent_ms else 0.0,
        )


class Drafting:
    """Drafts of one sequence: those proposed next and those in flight."""

    def __init__(self, cost: Cost) -> None:
        """`cost`: see `gpu.speculation.draft_length`."""
        self.counts = DraftCounts()
        self.in_flight: list[int] = []
        self.text_is_stale = False
        """Whether tokens were accepted that the device does not know for penalties."""
        self._cost = cost
        self._n_beside = 0
        self._length = DraftLength(cost)
        self._drafter = NgramDrafter()
        self._proposed: list[int] = []

    def index(self, ids: list[int], end: int) -> None:
        """Prepare to propose tokens from ids[:end]."""
        self._drafter.extend(ids, end)

    def propose(self, ids: list[int]) -> None:
        """Look for tokens that may follow `ids`, all of the text that is known."""
        self._proposed = self._drafter.propose(ids, MAX_DRAFTS)
        if self._proposed:
            self._length.hope()

    def wanted(self, most: int, n_beside: int) -> int:
        """Return how many of the proposed tokens to verify in the next step, at most `most`, beside
        `n_beside` rows of others."""
        n = min(most, len(self._proposed))
        return self._length.choose(n, n_beside) if n > 0 else 0

    def take(self, n: int, n_beside: int) -> list[int]:
        """Return the first `n` proposed tokens, which are in flight now, beside `n_beside` rows of
        other sequences."""
        self.in_flight, self._proposed = self._proposed[:n], []
        self._n_beside = n_beside
        return self.in_flight

    def verify(self, sampled: list[int], ms: float) -> int:
        """Return how many drafts in flight the tokens sampled after each of them accept, in a step
        that took `ms`."""
        pairs = zip(self.in_flight, sampled, strict=False)
        n_accepted = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        counts, n = self.counts, len(self.in_flight)
        self.in_flight = []
        self.text_is_stale = True
        self._length.learn(n, n_accepted)
        counts.n_steps += 1
        for i in range(n):
            counts.proposed[i] += 1
            counts.accepted[i] += i < n_accepted
        counts.spent_ms += ms
        counts.plain_ms += (n_accepted + 1) * (self._cost(self._n_beside + 1) or ms)
        return n_accepted
