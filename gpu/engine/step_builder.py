"""Builder of a step: rows of decoding sequences, then prefill chunks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from gpu.engine.decoding import Draws
from gpu.engine.sequence import Repeated, Sequence
from gpu.interventions.active import ActiveInterventions
from gpu.step import Row, Sample, Step, StepResult
from gpu.watermark.greenlist import WatermarkConfig


@dataclass(frozen=True, slots=True)
class Chunk:
    """Prompt tokens first … first + n − 1 of `sequence` are rows row … row + n − 1."""

    sequence: Sequence
    first: int
    n: int
    row: int


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A step and its sequences.

    samplers            the sequences that get samples of the step, in their order
    drafts              those that each of them verifies: it gets a sample more than it has drafts
    slot_interventions  (slot, interventions) to set before the step, where they change
    slot_texts          (slot, tokens, n_written) of slots whose text must be set before the step
    slot_bitmasks       (slot, bitmask) of slots whose grammar allows some tokens only
    watermarks          the sequences whose sample has a watermark, and what decides its greenlist
    capturing           the sequences that capture, by their settings when the step was made
    """

    step: Step
    samplers: tuple[Sequence, ...]
    drafts: tuple[list[int], ...]
    chunks: tuple[Chunk, ...] = ()
    slot_interventions: tuple[tuple[int, ActiveInterventions], ...] = ()
    slot_texts: tuple[tuple[int, list[int], int], ...] = ()
    slot_bitmasks: tuple[tuple[int, npt.NDArray[np.uint32]], ...] = ()
    watermarks: tuple[tuple[Sequence, WatermarkConfig], ...] = ()
    capturing: frozenset[Sequence] = frozenset()

    @property
    def n_prefill(self) -> int:
        """Rows of prompts."""
        return sum(chunk.n for chunk in self.chunks)

    def samples(self) -> Iterator[tuple[Sequence, range]]:
        """Yield each sequence with the numbers of its samples."""
        first = 0
        for sequence, drafts in zip(self.samplers, self.drafts, strict=True):
            yield sequence, range(first, first + 1 + len(drafts))
            first += 1 + len(drafts)

    def read(
        self, result: StepResult, repeated: Mapping[Sequence, Repeated] = MappingProxyType({})
    ) -> Iterator[Sequence]:
        """Hand the results to the sequences, to some those of a second run; yield those that have
        finished. One that did not capture gets no statistics, whatever others of the step did."""
        bare = replace(result, captured=None)
        for chunk in self.chunks:
            if not chunk.sequence.finished:
                again = repeated.get(chunk.sequence)
                own = result if chunk.sequence in self.capturing else bare
                at, of = (chunk.row, own) if again is None else (0, again.result)
                chunk.sequence.chunk_read(range(chunk.first, chunk.first + chunk.n), at, of)
        for sequence, samples in self.samples():
            if sequence.finished:
                continue
            if (again := repeated.get(sequence)) is not None:
                sequence.repeated_read(again)
            else:
                rows = [self.step.samples[i].row for i in samples]
                drawn = [result.samples[i] for i in samples]
                own = result if sequence in self.capturing else bare
                sequence.samples_read(Draws(drawn, rows, own))
            if sequence.finished:
                yield sequence


class StepBuilder:
    """Rows, samples and sequences of one step. Adding a sequence advances it: each is added once,
    and the step must be submitted."""

    def __init__(self) -> None:
        self.samplers: list[Sequence] = []
        self._drafts: list[list[int]] = []
        self._rows: list[Row] = []
        self._samples: list[Sample] = []
        self._chunks: list[Chunk] = []

    def decode(self, sequence: Sequence, n_drafts: int = 0, n_beside: int = 0) -> None:
        """Add the row that feeds the next sample of a sequence, and the sample; then its next
        `n_drafts` drafts alike. `n_beside`: rows of other sequences that decode."""
        drafts = sequence.decoding.take_drafts(n_drafts, n_beside)
        first = len(self._rows)
        self._rows += sequence.decode_rows(drafts)
        self._sample(sequence, range(first, len(self._rows)), drafts)

    def prefill(self, sequence: Sequence, n: int) -> None:
        """Add the next `n` rows of a prompt, and a sample if they are its last."""
        self._chunks.append(Chunk(sequence, sequence.prefill.n_done, n, len(self._rows)))
        self._rows += sequence.prefill_rows(n)
        if not sequence.prefilling:
            last = len(self._rows) - 1
            self._sample(sequence, range(last, last + 1), [])

    def scheduled(self) -> Scheduled | None:
        """Return the step; None if it has no rows."""
        if not self._rows:
            return None
        # One position for each slot is enough: all its rows are under the same interventions.
        at = {row.slot: row.position for row in self._rows}
        sequences = {s.slot: s for s in (*self.samplers, *(c.sequence for c in self._chunks))}
        changed = []
        for slot, sequence in sequences.items():
            index = at[slot] + sequence.n_shifted
            if (active := sequence.interventions.move_to(index)) is not None:
                changed.append((slot, active))
        acting = [sequence.interventions.active for sequence in sequences.values()]
        capturing = frozenset(s for s in sequences.values() if s.capture)
        step = Step(
            tuple(self._rows),
            tuple(self._samples),
            bool(capturing),
            interventions=any(active.acts_on_base for active in acting),
            loras=any(active.acts_on_loras for active in acting),
        )
        stale = [s for s in self.samplers if s.decoding.needs_text]
        return Scheduled(
            step,
            tuple(self.samplers),
            tuple(self._drafts),
            tuple(self._chunks),
            tuple(changed),
            tuple((s.slot, *s.decoding.sync_text()) for s in stale),
            tuple((s.slot, g.bitmask) for s in self.samplers if (g := s.text.grammar) is not None),
            tuple((s, c) for s in self.samplers if (c := WatermarkConfig.of(s.text.params))),
            capturing,
        )

    def _sample(self, sequence: Sequence, rows: range, drafts: list[int]) -> None:
        self._samples += [sequence.sample(row, i, bool(drafts)) for i, row in enumerate(rows)]
        self.samplers.append(sequence)
        self._drafts.append(drafts)
