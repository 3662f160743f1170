"""Speculative decoding of one sequence (Leviathan et al. 2023; Chen et al. 2023): its drafts, and
which are accepted.

The rows of a step are the sequence's last token and its drafts, and a token is sampled after each.
Verification is by exact match: a draft is accepted if it equals the token that the target model
sampled in its place. Every draw depends on the seed, its index and the logits alone, so the text
has the same ids as without drafts, at any temperature.

Drafts are proposed without a random draw: what followed the same n-gram earlier in the text, or the
most likely tokens of a draft model. For such drafts exact match is the rejection sampling of the
papers: both accept one with the probability that the target model gives it
(docs/performance-log.md: Draft models).

The tokens after a rejected draft are discarded. Their keys and values stay behind the end of the
text until they are overwritten.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from itertools import takewhile

import msgspec

from gpu.events import Timings
from gpu.speculative.draft_length import MAX_DRAFTS, Cost, DraftLength, free_of_charge
from gpu.speculative.ngram import NgramDrafter


@dataclass(slots=True)
class DraftCounts:
    """Counts of a run's verified drafts by their position in their step: `proposed[0]` counts those
    that came first.

    n_steps   steps that verified any
    spent_ms  time of these steps and of `draft_ms`
    draft_ms  time in which the draft model made them
    plain_ms  expected time of their tokens one by one
    """

    proposed: list[int] = field(default_factory=lambda: [0] * MAX_DRAFTS)
    accepted: list[int] = field(default_factory=lambda: [0] * MAX_DRAFTS)
    n_steps: int = 0
    spent_ms: float = 0.0
    draft_ms: float = 0.0
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
            draft_ms=self.draft_ms,
        )


class Drafting(ABC):
    """Drafts of one sequence: those proposed next and those in flight."""

    def __init__(self, cost: Cost, drafting_ms: Cost = free_of_charge) -> None:
        """`cost`, `drafting_ms`: see `gpu.speculative.draft_length`."""
        self.counts = DraftCounts()
        self.in_flight: list[int] = []
        self._cost = cost
        self._n_beside = 0
        self._length = DraftLength(cost, drafting_ms)
        self._proposed: list[int] = []
        self._proposed_ms = 0.0

    @abstractmethod
    def index(self, ids: list[int], end: int) -> None:
        """Prepare to propose tokens from ids[:end]."""

    @abstractmethod
    def propose(self, ids: list[int]) -> None:
        """Drop the proposed drafts, as the text is `ids` now; propose others if no model is
        needed for them."""

    @abstractmethod
    def expected(self, most: int) -> int:
        """Return how many drafts, at most `most`, the next step will probably verify. An estimate:
        samples in flight are not read yet."""

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
        """Verify the drafts in flight by exact match; return how many are accepted: those before
        the first that differs from the token in `sampled`, which the target model sampled in its
        place. `ms`: time of the step."""
        pairs = zip(self.in_flight, sampled, strict=False)
        n_accepted = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        counts, n = self.counts, len(self.in_flight)
        self.in_flight = []
        self._length.learn(n, n_accepted)
        counts.n_steps += 1
        for i in range(n):
            counts.proposed[i] += 1
            counts.accepted[i] += i < n_accepted
        counts.draft_ms += self._proposed_ms
        counts.spent_ms += ms + self._proposed_ms
        counts.plain_ms += (n_accepted + 1) * (self._cost(self._n_beside + 1) or ms)
        return n_accepted


class NgramDrafting(Drafting):
    """Drafts that followed the same tokens earlier in the text."""

    def __init__(self, cost: Cost) -> None:
        super().__init__(cost)
        self._drafter = NgramDrafter()

    def index(self, ids: list[int], end: int) -> None:
        self._drafter.extend(ids, end)

    def propose(self, ids: list[int]) -> None:
        self._proposed = self._drafter.propose(ids, MAX_DRAFTS)
        if self._proposed:
            self._length.decay_to_first_guess()

    def expected(self, most: int) -> int:
        return self.wanted(most, 0)


class ModelDrafting(Drafting):
    """Drafts of a draft model, which `gpu.engine.draft_model` asks for."""

    def __init__(self, cost: Cost, drafting_ms: Cost) -> None:
        super().__init__(cost, drafting_ms)
        self.can_draft = False
        """Whether the draft model has read the text and has room for more."""

    @property
    def has_proposed(self) -> bool:
        """Return whether there are drafts for the next step."""
        return bool(self._proposed)

    def index(self, ids: list[int], end: int) -> None:
        """Do nothing: the draft model reads the text itself."""

    @property
    def pays(self) -> bool:
        """Return whether drafts are expected to make this text faster, once it was read."""
        return self._length.choose(MAX_DRAFTS, 0) > 0

    def propose(self, ids: list[int]) -> None:
        self._proposed = []
        self._length.decay_to_first_guess()

    def expected(self, most: int) -> int:
        return self.to_draft(most, 0)

    def to_draft(self, most: int, n_beside: int) -> int:
        """Return how many tokens to draft for the next step, at most `most`, beside `n_beside` rows
        of others."""
        return self._length.choose(most, n_beside) if self.can_draft and most > 0 else 0

    def set_proposed(self, drafts: list[int], ms: float) -> None:
        """Set the drafts of the next step; they took `ms` of the engine's time."""
        self._proposed, self._proposed_ms = drafts, ms

    def wanted(self, most: int, n_beside: int) -> int:
        """Return all that were proposed and have room: they were chosen before they were made."""
        return max(0, min(most, len(self._proposed)))
