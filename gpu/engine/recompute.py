"""Rows of texts that are computed outside of any run, in the slot for that, a piece at a time.

Works on the engine's thread, while no step is in flight. A piece borrows blocks for a text's
tokens, computes some that the cache does not hold, and gives the blocks back, findable, so that the
next piece begins where this one ended; the last computes the rows in question again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from gpu.engine.pace import Pace
from gpu.engine.scheduler import Scheduler
from gpu.errors import QueueFull
from gpu.kv.prefix_cache import Chain
from gpu.reach import Course
from gpu.runner import Runner
from gpu.step import Floats, Inspected, Look, Row, Sample, Step

PIECE_ROWS = 16
"""Rows of a piece: a run beside it waits no longer than for a small chunk of a prompt."""

PLAIN = Course()
"""Nothing acts. Nobody changes it."""

T = TypeVar("T")


@dataclass(slots=True)
class Lent:
    """A slot whose blocks hold the keys and values of ids[:n_computed]."""

    slot: int
    ids: list[int]
    n_computed: int


class LentRows:
    """Computes rows of texts. `course`: the interventions they are computed under; rows that are
    asked for together have to be under the same, see `Course.end`. `pace`: says how many rows a
    piece has while others write; without it, that makes no difference."""

    def __init__(self, runner: Runner, scheduler: Scheduler, pace: Pace | None = None) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._pace = pace or Pace()

    @property
    def most_samples(self) -> int:
        return self._runner.limits.max_samples

    def piece_rows(self, kind: str, most: int = PIECE_ROWS) -> int:
        """Rows that the piece under way may compute, see `Pace.rows`."""
        return self._pace.rows(kind, most)

    def inspect(
        self, ids: list[int], first: int, look: Look, course: Course = PLAIN
    ) -> Generator[None, None, Inspected]:
        """Look at the rows of ids[first:]; at the last one's logits, if at any."""

        def ask(slot: int) -> Inspected:
            samples = (_sampled(len(ids) - first - 1, slot),)
            return self._runner.inspect(self._step(slot, ids, first, course, samples), look)

        return self._computed(ids, first, ask, course)

    def logits(
        self, ids: list[int], first: int, course: Course = PLAIN
    ) -> Generator[None, None, Floats]:
        """(len(ids) − first, vocab_size): after each of ids[first:], `most_samples` at most."""
        return self._computed(
            ids, first, lambda slot: self._ask_logits(slot, ids, first, course), course
        )

    def all_logits(self, ids: list[int], course: Course) -> Floats:
        """(len(ids), vocab_size): after every one of `ids`, all computed anew in one piece."""
        parts, first = [], 0
        with self._lent(ids, 0, course) as lent:
            while first < len(ids):
                end = course.end(first, min(first + self.most_samples, len(ids)))
                parts.append(self._ask_logits(lent.slot, ids[:end], first, course))
                first = end
            lent.n_computed = len(ids)
        return np.concatenate(parts)

    @contextmanager
    def blank(self, n_tokens: int) -> Iterator[int]:
        """A slot with blocks for so many tokens, whatever they hold."""
        with self._lent([0] * n_tokens, 0, PLAIN) as lent:
            yield lent.slot

    def _step(
        self,
        slot: int,
        ids: list[int],
        first: int,
        course: Course,
        samples: tuple[Sample, ...] = (),
    ) -> Step:
        """The rows of ids[first:], with what acts on them set."""
        reach = course.at(first)
        assert course.end(first, len(ids)) == len(ids), "rows under two settings in one step"
        if reach.acts:
            self._runner.set_reach(slot, reach)
        rows = tuple(Row(slot, i, ids[i]) for i in range(first, len(ids)))
        base, loras = reach.acts_on_base, reach.acts_on_loras
        return Step(rows, samples, reach=base, loras=loras)

    def _ask_logits(self, slot: int, ids: list[int], first: int, course: Course) -> Floats:
        samples = tuple(_sampled(i, slot) for i in range(len(ids) - first))
        return self._runner.logits(self._step(slot, ids, first, course, samples))

    def _computed(
        self, ids: list[int], first: int, ask: Callable[[int], T], course: Course
    ) -> Generator[None, None, T]:
        """What `ask` says of a slot in which ids[:first] are in place; it computes the rest. Should
        the cache not keep what a piece computed, the next one computes it again and goes further.
        """
        reached = 0
        while True:
            with self._lent(ids, first, course) as lent:
                if lent.n_computed == first:
                    answer = ask(lent.slot)
                    lent.n_computed = len(ids)
                    return answer
                lost = lent.n_computed < reached
                reached = min(first, max(lent.n_computed, reached) + self.piece_rows("fill"))
                self._fill(lent, reached, course)
                if reached == first and (lost or not self._pace.writing):
                    answer = ask(lent.slot)
                    lent.n_computed = len(ids)
                    return answer
            yield

    def _fill(self, lent: Lent, until: int, course: Course) -> None:
        """Compute keys and values of the tokens up to `until`."""
        while lent.n_computed < until:
            first = lent.n_computed
            end = course.end(first, min(first + self._runner.limits.max_rows, until))
            self._runner.submit(self._step(lent.slot, lent.ids[:end], first, course))
            self._runner.collect()
            lent.n_computed = end

    @contextmanager
    def _lent(self, ids: list[int], first: int, course: Course) -> Iterator[Lent]:
        borrowed = self._scheduler.borrow(ids, first, Chain(course.mark))
        if borrowed is None:
            raise QueueFull(
                f"no KV cache is free for {len(ids)} tokens; wait for the runs to end, or start "
                "with more --kv-memory"
            )
        lent = Lent(borrowed.slot, ids, borrowed.n_reused)
        try:
            for source, destination in borrowed.copies:
                self._runner.copy_block(source, destination)
            self._runner.set_blocks(lent.slot, borrowed.blocks)
            yield lent
        finally:
            self._scheduler.return_(borrowed, lent.n_computed)


def _sampled(row: int, slot: int) -> Sample:
    """Asks for the logits of a row; nothing is drawn."""
    return Sample(row, slot, 0, 0, 0.0, 0, 1.0, 0.0, 1.0)
