"""Rows of texts computed outside of any run, piece by piece, in a slot of their own.

Works on the engine's thread while no step is in flight. A piece borrows blocks for the text's
tokens, computes some of those that the cache does not hold, and gives the blocks back to the prefix
cache, where the next piece finds them. The last piece computes the rows in question.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from gpu.engine.kv_copies import submit_copies
from gpu.engine.question_budget import QuestionBudget
from gpu.engine.scheduler import Scheduler
from gpu.errors import QueueFull
from gpu.interventions.active import InterventionSchedule
from gpu.kv.prefix_cache import BlockHashes
from gpu.runner import Runner
from gpu.step import (
    Floats,
    InspectionRequest,
    InspectionResult,
    KvVariant,
    Row,
    Sample,
    Step,
)

PIECE_ROWS = 16
"""Most rows of a piece while there are runs: they wait for it no longer than for a small chunk of a
prompt."""

EMPTY_SCHEDULE = InterventionSchedule()
"""No interventions. Shared, so it must not be changed."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PassVariant:
    """How rows are computed for a comparison. `rope` False: without rotary positions; `kv`: change
    of what attention reads."""

    rope: bool = True
    kv: KvVariant | None = None

    @property
    def digest(self) -> bytes:
        """Part of the key of blocks computed so, which no other text may find; empty for the
        model's own pass."""
        return b"" if self == OWN_PASS else repr(self).encode()


OWN_PASS = PassVariant()


@dataclass(slots=True)
class BorrowedSlot:
    """A slot whose blocks hold the keys and values of ids[:n_computed]."""

    slot: int
    ids: list[int]
    n_computed: int


class Recomputer:
    """Computes rows of texts.

    `schedule` holds the interventions they are computed under; rows requested together must be
    under the same ones (`InterventionSchedule.next_change`). `budget` makes pieces smaller while
    runs write, and larger while none does; without it, they are small.
    """

    def __init__(
        self, runner: Runner, scheduler: Scheduler, budget: QuestionBudget | None = None
    ) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._knows_runs = budget is not None
        self.budget = budget or QuestionBudget()

    @property
    def max_samples(self) -> int:
        return self._runner.limits.max_samples

    @property
    def most_rows(self) -> int:
        """Return the most rows of a piece that takes a step: as many as a step may have while no
        run writes, as for the prompt of a run."""
        idle = self._knows_runs and not self.budget.writing
        return self._runner.limits.max_rows if idle else PIECE_ROWS

    def piece_rows(self, kind: str, most: int = PIECE_ROWS) -> int:
        """Return the most rows of the current piece (`QuestionBudget.rows`)."""
        return self.budget.rows(kind, most)

    def inspect(
        self,
        ids: list[int],
        first: int,
        request: InspectionRequest,
        schedule: InterventionSchedule = EMPTY_SCHEDULE,
        variant: PassVariant = OWN_PASS,
    ) -> Generator[None, None, InspectionResult]:
        """Inspect the rows of ids[first:]; a logit lens is of the last row."""

        def ask(slot: int) -> InspectionResult:
            samples = (_sampled(len(ids) - first - 1, slot),)
            step = self._step(slot, ids, first, schedule, samples)
            return self._runner.inspect(replace(step, kv=variant.kv), request)

        return self._computed(ids, first, ask, schedule, variant)

    def logits(
        self,
        ids: list[int],
        first: int,
        schedule: InterventionSchedule = EMPTY_SCHEDULE,
        variant: PassVariant = OWN_PASS,
    ) -> Generator[None, None, Floats]:
        """Return the logits after each of ids[first:], at most `max_samples`, as (len(ids) − first,
        vocab_size)."""

        def ask(slot: int) -> Floats:
            return self._ask_logits(slot, ids, first, schedule, variant)

        return self._computed(ids, first, ask, schedule, variant)

    def all_logits(self, ids: list[int], schedule: InterventionSchedule) -> Floats:
        """Return the logits after every id as (len(ids), vocab_size), all computed in one piece."""
        parts, first = [], 0
        with self._borrow(ids, 0, schedule) as borrowed_slot:
            while first < len(ids):
                end = schedule.next_change(first, min(first + self.max_samples, len(ids)))
                parts.append(self._ask_logits(borrowed_slot.slot, ids[:end], first, schedule))
                borrowed_slot.n_computed = first = end
        return np.concatenate(parts)

    @contextmanager
    def reserve(self, n_tokens: int) -> Iterator[int]:
        """Lend a slot with blocks for `n_tokens` tokens of any content."""
        with self._borrow([0] * n_tokens, 0, EMPTY_SCHEDULE) as borrowed_slot:
            yield borrowed_slot.slot

    def _step(
        self,
        slot: int,
        ids: list[int],
        first: int,
        schedule: InterventionSchedule,
        samples: tuple[Sample, ...] = (),
    ) -> Step:
        """Return the step of ids[first:], after setting the interventions on it."""
        active = schedule.at(first)
        assert schedule.next_change(first, len(ids)) == len(ids), (
            "rows under two settings in one step"
        )
        if active.acts:
            self._runner.set_interventions(slot, active)
        rows = tuple(Row(slot, i, ids[i]) for i in range(first, len(ids)))
        return Step(
            rows,
            samples,
            interventions=active.acts_on_base,
            loras=active.acts_on_loras,
            masked=bool(active.masked),
        )

    def _ask_logits(
        self,
        slot: int,
        ids: list[int],
        first: int,
        schedule: InterventionSchedule,
        variant: PassVariant = OWN_PASS,
    ) -> Floats:
        samples = tuple(_sampled(i, slot) for i in range(len(ids) - first))
        step = self._step(slot, ids, first, schedule, samples)
        return self._runner.logits(replace(step, kv=variant.kv))

    def _computed(
        self,
        ids: list[int],
        first: int,
        ask: Callable[[int], T],
        schedule: InterventionSchedule,
        variant: PassVariant,
    ) -> Generator[None, None, T]:
        """Fill a slot with ids[:first] piece by piece, then return `ask(slot)`, which computes the
        rest. If the cache has dropped an earlier piece, the next one computes it again and more.
        """
        n_filled = 0
        while True:
            with self._borrow(ids, first, schedule, variant) as borrowed_slot:
                if borrowed_slot.n_computed == first:
                    answer = ask(borrowed_slot.slot)
                    borrowed_slot.n_computed = len(ids)
                    return answer
                lost = borrowed_slot.n_computed < n_filled
                piece = self.piece_rows("fill", self.most_rows)
                n_filled = min(first, max(borrowed_slot.n_computed, n_filled) + piece)
                self._fill(borrowed_slot, n_filled, schedule, variant)
                if n_filled == first and (lost or not self.budget.writing):
                    answer = ask(borrowed_slot.slot)
                    borrowed_slot.n_computed = len(ids)
                    return answer
            yield

    def _fill(
        self,
        borrowed_slot: BorrowedSlot,
        until: int,
        schedule: InterventionSchedule,
        variant: PassVariant,
    ) -> None:
        """Compute keys and values of the tokens up to `until`."""
        while borrowed_slot.n_computed < until:
            first = borrowed_slot.n_computed
            end = schedule.next_change(first, min(first + self._runner.limits.max_rows, until))
            step = self._step(borrowed_slot.slot, borrowed_slot.ids[:end], first, schedule)
            self._runner.submit(replace(step, kv=variant.kv))
            self._runner.collect()
            borrowed_slot.n_computed = end

    @contextmanager
    def _borrow(
        self,
        ids: list[int],
        first: int,
        schedule: InterventionSchedule,
        variant: PassVariant = OWN_PASS,
    ) -> Iterator[BorrowedSlot]:
        """Lend a slot for ids, of which those from `first` on will be computed by `variant`."""

        def digest_at(position: int) -> bytes:
            return schedule.digest_at(position) + variant.digest

        hashes = BlockHashes(digest_at, schedule.cache_salt)
        all_read = variant.kv is not None and variant.kv.window is not None
        borrowed = self._scheduler.borrow(ids, first, hashes, all_read=all_read)
        if borrowed is None:
            raise QueueFull(
                f"no KV cache is free for {len(ids)} tokens; wait for the runs to end, or start "
                "with more --kv-memory"
            )
        borrowed_slot = BorrowedSlot(borrowed.slot, ids, borrowed.n_reused)
        try:
            submit_copies(self._runner, borrowed.copies)
            for group, blocks in enumerate(borrowed.tables):
                self._runner.set_blocks(borrowed_slot.slot, blocks, group)
            if not variant.rope:
                self._runner.set_rope(rotates=False, n_positions=len(ids))
            yield borrowed_slot
        finally:
            if not variant.rope:
                self._runner.set_rope(rotates=True, n_positions=len(ids))
            self._scheduler.give_back(borrowed, borrowed_slot.n_computed)


def _sampled(row: int, slot: int) -> Sample:
    """Return a sample that selects the logits of a row; its draw is not used."""
    return Sample(row, slot, 0, 0, 0.0, 0, 1.0, 0.0, 1.0)
