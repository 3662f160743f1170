"""A step that is being put together: rows of decoding sequences, then chunks of prompts."""

from __future__ import annotations

from dataclasses import dataclass

from gpu.engine.sequence import Sequence
from gpu.interventions.active import ActiveInterventions
from gpu.step import Row, Sample, Step


@dataclass(frozen=True, slots=True)
class Chunk:
    """Prompt tokens first … first + n − 1 of `sequence` are rows row … row + n − 1."""

    sequence: Sequence
    first: int
    n: int
    row: int


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A step and its sequences: `samplers[i]` gets the step's i-th sample, which follows
    rows[rows[i]]. `slot_interventions`: (slot, interventions) to set before the step, where they
    change."""

    step: Step
    samplers: tuple[Sequence, ...]
    rows: tuple[int, ...]
    chunks: tuple[Chunk, ...] = ()
    slot_interventions: tuple[tuple[int, ActiveInterventions], ...] = ()

    @property
    def n_prefill(self) -> int:
        """Rows of prompts."""
        return sum(chunk.n for chunk in self.chunks)


class StepBuilder:
    """Rows, samples and sequences of one step. Adding a sequence advances it: each is added once,
    and the step must be submitted."""

    def __init__(self) -> None:
        self.samplers: list[Sequence] = []
        self._rows: list[Row] = []
        self._samples: list[Sample] = []
        self._chunks: list[Chunk] = []

    def decode(self, sequence: Sequence) -> None:
        """Add the row that feeds the next sample of a sequence, and the sample."""
        self._rows.append(sequence.decode_row())
        self._sample(sequence)

    def prefill(self, sequence: Sequence, n: int) -> None:
        """Add the next `n` rows of a prompt, and a sample if they are its last."""
        self._chunks.append(Chunk(sequence, sequence.n_prefilled, n, len(self._rows)))
        self._rows += sequence.prefill_rows(n)
        if not sequence.prefilling:
            self._sample(sequence)

    def scheduled(self) -> Scheduled | None:
        """Return the step; None if it has no rows."""
        if not self._rows:
            return None
        at = {row.slot: row.position for row in self._rows}  # a slot's rows are all under the same
        sequences = {s.slot: s for s in (*self.samplers, *(c.sequence for c in self._chunks))}
        changed = []
        for slot, sequence in sequences.items():
            if (active := sequence.interventions.move_to(at[slot])) is not None:
                changed.append((slot, active))
        acting = [sequence.interventions.active for sequence in sequences.values()]
        step = Step(
            tuple(self._rows),
            tuple(self._samples),
            any(sequence.capture for sequence in sequences.values()),
            interventions=any(active.acts_on_base for active in acting),
            loras=any(active.acts_on_loras for active in acting),
        )
        sampled = tuple(sample.row for sample in self._samples)
        return Scheduled(step, tuple(self.samplers), sampled, tuple(self._chunks), tuple(changed))

    def _sample(self, sequence: Sequence) -> None:
        self._samples.append(sequence.sample(len(self._rows) - 1))
        self.samplers.append(sequence)
