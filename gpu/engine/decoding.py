"""Decoding of one sequence: the samples that were submitted to the device, with their drafts.

The engine submits ahead of what it reads: `n_submitted` samples are in flight or done,
`RunText.n_written` were read. Samples past a stop are discarded.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from gpu.engine.run_text import RunText
from gpu.speculative.drafting import Drafting
from gpu.step import FROM_GPU, Sample, Sampled, StepResult


class Draws(NamedTuple):
    """Samples of one sequence in a step, and the rows that they were drawn after."""

    samples: list[Sampled]
    rows: list[int]
    result: StepResult


class Decoding:
    """Submitted samples of one sequence.

    n_submitted    samples submitted, with those that another engine wrote
    n_discarded    results in flight that are discarded when they are read
    drafting       speculative decoding of this sequence; None: there is none
    text_is_stale  whether the device's penalties count other tokens than those of the text
    """

    def __init__(self, text: RunText) -> None:
        self.n_submitted = text.n_written
        self.n_discarded = 0
        self.drafting: Drafting | None = None
        self.text_is_stale = False
        self._text = text

    @property
    def settled(self) -> bool:
        """Return whether all submitted samples were read."""
        return self.n_submitted == self._text.n_written

    @property
    def has_drafts(self) -> bool:
        """Return whether drafts are in flight: it is not known then which token is the next."""
        return self.drafting is not None and bool(self.drafting.in_flight)

    @property
    def needs_text(self) -> bool:
        """Return whether the device must be given the text before the next sample."""
        return self.text_is_stale and self._text.params.has_penalty

    @property
    def next_index(self) -> int:
        """Index in the text of the token of the row that feeds the next sample."""
        return len(self._text.prompt) + self.n_submitted - 1

    def sync_text(self) -> tuple[list[int], int]:
        """Return the ids and `RunText.n_counted` that the device is given now."""
        self.text_is_stale = False
        return self._text.ids, self._text.n_counted

    def take_drafts(self, n: int, n_beside: int) -> list[int]:
        """Return the next `n` drafts, which are in flight now, beside `n_beside` rows of other
        sequences."""
        return self.drafting.take(n, n_beside) if self.drafting is not None and n else []

    def next_tokens(self, drafts: list[int]) -> list[int]:
        """Return the tokens of the next rows: the one sampled last, which the host may not have
        read yet, and `drafts` after it."""
        # An id that was read is named: the device may have chosen another one after a rejected
        # draft, and of a model in stages the first device does not have it.
        return [self._text.ids[-1] if self.settled else FROM_GPU, *drafts]

    def sample(self, slot: int, row: int, n_drafts: int = 0, verifies: bool = False) -> Sample:
        """Return the draw of the next token, after rows[row] of the step. `n_drafts`: rows up to
        that one which are drafts."""
        text = self._text
        sample = Sample.of(text.params, row=row, slot=slot, index=self.n_submitted)
        self.n_submitted += 1
        if text.grammar is not None:
            return replace(sample, n_allowed=text.grammar.n_allowed)
        return replace(sample, n_drafts=n_drafts, verifies=verifies) if verifies else sample

    def rewind(self, n_in_flight: int = 0) -> None:
        """Submit all samples again that were not written. The next `n_in_flight` results are those
        of them that were not read yet."""
        self.n_discarded += n_in_flight
        self.n_submitted = self._text.n_written
        self.text_is_stale = True
