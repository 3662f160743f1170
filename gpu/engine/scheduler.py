"""Continuous batching with chunked prefill: chooses the rows of the next step.

A step takes one row of each decoding sequence, then a chunk of the first prompt that is not in the
cache yet (Agrawal et al. 2023, "Sarathi"). If more sequences decode than a step can sample, those
that were served longest ago come first; a prompt whose last token is next counts from when it got
its slot. Sequences wait, by priority and then in order, until a slot is free and the KV cache has
room for their prompt. Tokens in the prefix cache are not computed again (`gpu.engine.kv_manager`).

Blocks for what is written are taken when they are needed. If none is free, the last in order of the
running sequences is preempted: it gives its blocks and slot back and waits, and later prefills what
it had written as if it were its prompt, of which the prefix cache may still have most. The ids do
not depend on it. The last in order itself waits for a block without losing its own. So the first in
order always goes on, and every sequence ends. Host logic only; the engine submits the steps.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass

from gpu.engine.chunk_size import ChunkSizer
from gpu.engine.kv_manager import BorrowedBlocks, KvManager
from gpu.engine.sequence import Sequence
from gpu.info import RunnerLimits
from gpu.interventions.active import ActiveInterventions
from gpu.kv.prefix_cache import BlockHashes
from gpu.kv.state import KvState
from gpu.load_options import PREFILL_STRETCH
from gpu.step import Row, Sample, Step

PROMPT_SHARE = 8
"""If more sequences decode than a step has rows, one row in this many is left for a prompt."""


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
    chunk: Chunk | None
    slot_interventions: tuple[tuple[int, ActiveInterventions], ...] = ()


class Scheduler:
    """Scheduler of one engine. `prefix_cache` False: every prompt is computed whole;
    `prefill_stretch`: see `gpu.engine.chunk_size`."""

    def __init__(
        self,
        limits: RunnerLimits,
        *,
        prefix_cache: bool = True,
        prefill_stretch: float = PREFILL_STRETCH,
    ) -> None:
        self.limits = limits
        self.kv = KvManager(limits.n_blocks, prefix_cache=prefix_cache)
        self.waiting: list[Sequence] = []
        self.active: list[Sequence] = []
        self._free_slots = list(range(limits.slots - 1, -1, -1))
        self._lacks_blocks: Sequence | None = None  # first in line, until blocks may be free
        self.n_preemptions = 0
        self._n_added = 0
        self._n_steps = 0
        self._chunks = ChunkSizer(prefill_stretch)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence; it is told its place."""
        self._n_added += 1
        sequence.order = (sequence.order[0], self._n_added)
        self._queue(sequence)
        sequence.accepted(self._place(self.waiting.index(sequence) + 1))
        self._tell_places()

    def admit(self) -> list[Sequence]:
        """Give slots to waiting sequences, in order; return those that start now."""
        started = []
        while self._first_in_line is not None and self._first_in_line.interventions.ready:
            self.waiting[0].resume()
            if not self.kv.admit(self.waiting[0]):
                self._lacks_blocks = self.waiting[0]
                break
            sequence = self.waiting.pop(0)
            sequence.slot = self._free_slots.pop()
            sequence.served = self._n_steps
            self.active.append(sequence)
            sequence.apply_scheduled_updates()
            started.append(sequence)
        if started:
            self._tell_places()
        return started

    @property
    def to_resolve(self) -> Sequence | None:
        """Return the sequence that could start now if its interventions were resolved."""
        first = self._first_in_line
        return None if first is None or first.interventions.ready else first

    def wait_for_blocks(self, sequence: Sequence) -> None:
        """Make a sequence that could start wait until blocks may be free."""
        self._lacks_blocks = sequence

    def next_step(self, *, prefill: bool = True) -> Scheduled | None:
        """Return a step of the rows that can run now, or None. `prefill` False: only decoding
        sequences."""
        prompt = self._next_prompt() if prefill else None
        samplers = self._next_writers(prompt)
        n = self._piece_rows(prompt, samplers) if prompt else 0
        if prompt and n == prompt.n_to_prefill and len(samplers) == self.limits.max_samples:
            if prompt.served <= samplers[-1].served:
                samplers.pop()
            else:
                n -= 1  # the last token waits for a step that can sample it
        samplers, n = self._with_blocks(samplers, prompt, n)
        rows, samples = self._decode(samplers)
        chunk = self._prefill(prompt, n, rows, samples, samplers) if prompt and n else None
        if not rows:
            return None
        self._n_steps += 1
        for sequence in samplers:
            sequence.served = self._n_steps
        capture = any(s.capture for s in samplers) or (chunk is not None and chunk.sequence.capture)
        slot_interventions, acting = self._slot_interventions(rows, samplers, chunk)
        step = Step(
            tuple(rows),
            tuple(samples),
            capture,
            interventions=any(active.acts_on_base for active in acting),
            loras=any(active.acts_on_loras for active in acting),
        )
        self._apply_scheduled_updates(samplers)
        return Scheduled(
            step, tuple(samplers), tuple(s.row for s in samples), chunk, slot_interventions
        )

    def learn(self, scheduled: Scheduled, ms: float) -> None:
        """Record that a step took `ms`, which sizes the next chunks."""
        self._chunks.learn(scheduled.step, scheduled.chunk.n if scheduled.chunk else 0, ms)

    def release(self, sequence: Sequence) -> None:
        """Free the slot and blocks of a finished sequence. Its steps still in flight run before
        anything that reuses them, because the device keeps the order of submission."""
        self._lacks_blocks = None
        if sequence in self.active:
            self.active.remove(sequence)
            self._free_slots.append(sequence.slot)
            self.kv.release(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
            self._tell_places()

    def borrow(
        self, ids: list[int], first: int | None = None, block_hashes: BlockHashes | None = None
    ) -> BorrowedBlocks | None:
        """Borrow the inspection slot and blocks for `ids`, with their cached beginning in place;
        None if too few blocks are free. The borrower computes the rows from `n_reused` on; rows
        from `first` on (the last alone if None) are never cached ones. To be given back before the
        next step is made. `block_hashes`: those of `ids`, if interventions acted on them."""
        most = len(ids) - 1 if first is None else first
        return self.kv.borrow(self.limits.inspection_slot, ids, most, block_hashes or BlockHashes())

    @property
    def n_free_blocks(self) -> int:
        """Return the KV blocks that no run has."""
        return self.kv.n_free

    def give_back(self, borrowed: BorrowedBlocks, n_computed: int = 0) -> None:
        """Give back borrowed blocks; their first `n_computed` tokens enter the prefix cache."""
        self.kv.give_back(borrowed, n_computed)

    def kv_state(self) -> KvState:
        """Return what every KV block holds now, and how much was reused so far."""
        return self.kv.state()

    @property
    def _first_in_line(self) -> Sequence | None:
        """Return the first waiting sequence if a slot is free, all it submitted was read, and it
        did not lack blocks when it was last tried."""
        if not (self.waiting and self._free_slots):
            return None
        first = self.waiting[0]
        hopeless = first is self._lacks_blocks and bool(self.active)
        return first if first.settled and not hopeless else None

    def _slot_interventions(
        self, rows: list[Row], samplers: list[Sequence], chunk: Chunk | None
    ) -> tuple[tuple[tuple[int, ActiveInterventions], ...], tuple[ActiveInterventions, ...]]:
        """Return the interventions to set before a step, by slot, and those that act in it."""
        at = {row.slot: row.position for row in rows}  # all rows of a slot are under the same
        sequences = {s.slot: s for s in (*samplers, *([chunk.sequence] if chunk else []))}
        changed = []
        for slot, sequence in sequences.items():
            if (active := sequence.interventions.move_to(at[slot])) is not None:
                changed.append((slot, active))
        return tuple(changed), tuple(s.interventions.active for s in sequences.values())

    def _place(self, n: int) -> int:
        """Return how many sequences must end for the n-th waiting one (from 1) to start."""
        lacks_blocks = self._lacks_blocks is not None and self._lacks_blocks in self.waiting
        return n if lacks_blocks else max(0, n - len(self._free_slots))

    def _queue(self, sequence: Sequence) -> None:
        insort(self.waiting, sequence, key=_order)

    def _tell_places(self) -> None:
        for n, sequence in enumerate(self.waiting, 1):
            sequence.queue_moved(self._place(n))

    def _apply_scheduled_updates(self, samplers: list[Sequence]) -> None:
        """Apply due updates now, not when the next token is wanted: without a change there may be
        no next one."""
        for sequence in samplers:
            sequence.apply_scheduled_updates()
            if sequence.finished:
                self.release(sequence)

    def _next_prompt(self) -> Sequence | None:
        """Return the first in order of the sequences whose prompt is not in the cache yet."""
        prefilling = (s for s in self.active if s.prefilling and not s.finished)
        return min(prefilling, key=_order, default=None)

    def _next_writers(self, prompt: Sequence | None) -> list[Sequence]:
        """Return the sequences that get a row of the next step, least recently served first. Some
        rows are left for a prompt, if there is one."""
        line = sorted((s for s in self.active if s.wants_decode), key=lambda s: s.served)
        writers = line[: self.limits.max_samples]
        most = self._most_rows(prompt, writers)
        if prompt is not None:
            most -= max(1, most // PROMPT_SHARE)
        return writers[:most]

    def _piece_rows(self, prompt: Sequence, writers: list[Sequence]) -> int:
        """Return the rows of the next chunk of `prompt`, beside one row for each of `writers`."""
        most = self._most_rows(prompt, writers) - len(writers)
        if prompt.n_prefilled == prompt.n_matched:
            self.kv.match_again(prompt)
        first = prompt.n_prefilled
        n = min(prompt.n_to_prefill, self._chunks.rows(len(writers), most))
        return prompt.interventions.schedule.next_change(first, first + n) - first

    def _most_rows(self, prompt: Sequence | None, writers: list[Sequence]) -> int:
        capture = any(s.capture for s in writers) or (prompt is not None and prompt.capture)
        return self.limits.max_captured_rows if capture else self.limits.max_rows

    def _decode(self, writers: list[Sequence]) -> tuple[list[Row], list[Sample]]:
        """Return, for each sequence, the row that feeds its next sample, and the sample."""
        rows: list[Row] = []
        samples: list[Sample] = []
        for sequence in writers:
            rows.append(sequence.decode_row())
            samples.append(sequence.sample(len(rows) - 1))
        return rows, samples

    def _with_blocks(
        self, writers: list[Sequence], prompt: Sequence | None, n: int
    ) -> tuple[list[Sequence], int]:
        """Return the writers that have a block for their next row, and how many of the next `n`
        rows of `prompt` have one. Sequences are preempted for those before them in order."""
        covered = set()
        for sequence in sorted({*writers, *([prompt] if prompt and n else ())}, key=_order):
            if sequence not in self.active:
                continue  # preempted meanwhile
            if sequence is prompt:
                n = self._covered_rows(prompt, n)
            if sequence is not prompt and self._cover(sequence, sequence.next_position):
                covered.add(sequence)
        if prompt is not None and prompt not in self.active:
            n = 0
        return [s for s in writers if s in covered and s in self.active], n

    def _covered_rows(self, prompt: Sequence, n: int) -> int:
        """Return how many of the next `n` rows of `prompt` have blocks now."""
        if not self._cover(prompt, prompt.n_prefilled + n - 1):
            n = min(n, self.kv.room(prompt) - prompt.n_prefilled)
            if n > 0:
                self.kv.cover(prompt, prompt.n_prefilled + n - 1)
        return max(0, n)

    def _cover(self, sequence: Sequence, position: int) -> bool:
        """Give a sequence a block for `position`, preempting others after it in order; return
        False if there is none."""
        while not self.kv.cover(sequence, position):
            last = max(self.active, key=_order)
            if last is sequence:
                return False
            self._preempt(last)
        return True

    def _preempt(self, sequence: Sequence) -> None:
        """Take blocks and slot from a sequence. It is the next to start once a run has ended."""
        self.n_preemptions += 1
        self.active.remove(sequence)
        self._free_slots.append(sequence.slot)
        self.kv.release(sequence)
        sequence.preempt()
        self._queue(sequence)
        self._lacks_blocks = self.waiting[0]
        self._tell_places()

    def _prefill(
        self,
        prompt: Sequence,
        n: int,
        rows: list[Row],
        samples: list[Sample],
        samplers: list[Sequence],
    ) -> Chunk:
        """Add the next `n` rows of `prompt`, and a sample if they are its last."""
        chunk = Chunk(prompt, prompt.n_prefilled, n, len(rows))
        rows += prompt.prefill_rows(n)
        if not prompt.prefilling:
            samples.append(prompt.sample(len(rows) - 1))
            samplers.append(prompt)
        return chunk


def _order(sequence: Sequence) -> tuple[int, int]:
    return sequence.order
