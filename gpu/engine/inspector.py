"""Answers questions about runs, a piece at a time, between the steps of the runs that write.

Works on the engine's thread, while no step is in flight. A piece borrows blocks for the question's
tokens, computes some that the cache does not hold, and gives the blocks back, findable, so that the
next piece begins where this one ended; the last computes the rows in question again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from gpu.engine.scheduler import Scheduler
from gpu.engine.sequence import sample_of
from gpu.errors import InvalidRequest, QueueFull
from gpu.inspect.beam import beam_answer
from gpu.inspect.plan_questions import peaks_answer, plan_answer, profile_answer
from gpu.inspect.readings import LossReading, kv_reading, lens_reading
from gpu.inspect.waterfall import waterfall
from gpu.inspection import (
    Answer,
    Array,
    AttentionFrom,
    AttentionTo,
    Beam,
    CacheBlocks,
    DevicePeaks,
    LogitLens,
    Losses,
    PlanView,
    Profile,
    Question,
    Waterfall,
)
from gpu.runner import Runner
from gpu.step import Floats, Inspected, Look, Row, Sample, Step

PIECE_ROWS = 16
"""Rows of a piece: a run beside it waits no longer than for a small chunk of a prompt."""

MAX_TOP = 100

T = TypeVar("T")

Pieces = Generator[None, None, Answer]
"""Yields after each piece of work; its value is the answer."""


class Inspector:
    """Starts questions. Knows what was computed, not when. `end_ids`: tokens that end a text, which
    the model's configuration need not name."""

    def __init__(self, runner: Runner, scheduler: Scheduler, end_ids: tuple[int, ...] = ()) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._end_ids = (*runner.config.eos_ids, *end_ids)
        self._latest: tuple[list[int], Floats] | None = None  # ids, logits after the last of them

    def start(self, question: Question) -> Pieces:
        """Raises InvalidRequest for a question that cannot be answered. Advancing it raises
        QueueFull while the cache has no room for its tokens."""
        match question:
            case AttentionFrom(ids=ids, position=position):
                self._check_place(ids, position)
                return self._attention_from(ids[: position + 1])
            case AttentionTo(ids=ids, position=position):
                self._check_place(ids, position)
                return self._attention_to(ids, position)
            case LogitLens(ids=ids, position=position):
                self._check_place(ids, position)
                self._check_ids([question.chosen], "chosen")
                _check_top(question.top)
                return self._logit_lens(ids[: position + 1], question)
            case Waterfall(ids=ids, position=position):
                self._check_place(ids, position)
                _check_top(question.top)
                return self._waterfall(ids[: position + 1], _drawn(question), question.top)
            case Losses(ids=ids, first=first):
                self._check_place(ids, 0)
                _check_top(question.top)
                if len(ids) < 2:
                    raise InvalidRequest("one token has nothing before it; give two ids", "ids")
                self._check_place(ids[:-1], first, "first")
                return self._losses(ids, first, question.top)
            case Beam(ids=ids):
                self._check_place(ids, 0)
                context = self._runner.limits.context
                return beam_answer(question, self._logits_after, self._end_ids, context)
            case PlanView():
                return plan_answer(self._runner, question)
            case Profile():
                return profile_answer(self._runner, question, self._lent_blank)
            case CacheBlocks():
                return self._cache_blocks()
            case DevicePeaks():
                return peaks_answer(self._runner)

    def logits(self, ids: list[int]) -> Generator[None, None, Floats]:
        """(len(ids), vocab_size): after every one of `ids`, all computed anew in one piece."""
        size, parts = self._runner.limits.max_samples, []
        with self._lent(ids, 0) as lent:
            for first in range(0, len(ids), size):
                parts.append(self._ask_logits(lent.slot, ids[: first + size], first))
            lent.n_computed = len(ids)
        yield from ()
        return np.concatenate(parts)

    # ---- the questions ----------------------------------------------------------------------

    def _attention_from(self, ids: list[int]) -> Pieces:
        last = len(ids) - 1
        found = yield from self._inspect(ids, last, Look(keys=(0, len(ids))))
        assert found.attention is not None
        return Answer({}, (Array.of("weights", found.attention[0]),))

    def _attention_to(self, ids: list[int], position: int) -> Pieces:
        parts = []
        for first in range(position, len(ids), PIECE_ROWS):
            some = ids[: first + PIECE_ROWS]
            found = yield from self._inspect(some, first, Look(keys=(position, 1)))
            assert found.attention is not None
            parts.append(found.attention[..., 0])
            yield
        return Answer({}, (Array.of("weights", np.concatenate(parts)),))

    def _logit_lens(self, ids: list[int], question: LogitLens) -> Pieces:
        found = yield from self._inspect(ids, len(ids) - 1, Look(lens=True))
        assert found.lens is not None
        return lens_reading(found.lens, question.chosen, question.top)

    def _waterfall(self, ids: list[int], sample: Sample, top: int) -> Pieces:
        """The logits are kept for the next question, which a slider asks right after."""
        if self._latest is None or self._latest[0] != ids:
            logits = yield from self._logits(ids, len(ids) - 1)
            self._latest = (ids, logits)
        return waterfall(self._latest[1][0], ids, sample, top)

    def _losses(self, ids: list[int], first: int, top: int) -> Pieces:
        reading, size = LossReading(top), self._runner.limits.max_samples
        for at in range(first, len(ids) - 1, size):
            known = ids[: min(at + size, len(ids) - 1)]
            logits = yield from self._logits(known, at)
            reading.add(logits, ids[at + 1 : len(known) + 1])
            yield
        return reading.answer()

    def _cache_blocks(self) -> Pieces:
        yield from ()
        return kv_reading(self._scheduler.kv_state())

    # ---- rows -------------------------------------------------------------------------------

    def _inspect(self, ids: list[int], first: int, look: Look) -> Generator[None, None, Inspected]:
        """Look at the rows of ids[first:]; at the last one's logits, if at any."""

        def ask(slot: int) -> Inspected:
            rows = _rows(slot, ids, first)
            return self._runner.inspect(Step(rows, (_sampled(len(rows) - 1, slot),)), look)

        return self._computed(ids, first, ask)

    def _logits(self, ids: list[int], first: int) -> Generator[None, None, Floats]:
        """(len(ids) − first, vocab_size): after each of ids[first:], max_samples at most."""

        return self._computed(ids, first, lambda slot: self._ask_logits(slot, ids, first))

    def _logits_after(self, ids: list[int]) -> Generator[None, None, Floats]:
        """(1, vocab_size): after the last of `ids`."""
        return self._logits(ids, len(ids) - 1)

    def _ask_logits(self, slot: int, ids: list[int], first: int) -> Floats:
        rows = _rows(slot, ids, first)
        samples = tuple(_sampled(i, slot) for i in range(len(rows)))
        return self._runner.logits(Step(rows, samples))

    def _computed(
        self, ids: list[int], first: int, ask: Callable[[int], T]
    ) -> Generator[None, None, T]:
        """What `ask` says of a slot in which ids[:first] are in place; it computes the rest. Should
        the cache not keep what a piece computed, the next one computes it again and goes further.
        """
        reached = 0
        while True:
            with self._lent(ids, first) as lent:
                reached = min(first, max(lent.n_computed, reached) + PIECE_ROWS)
                self._fill(lent, reached)
                if reached == first:
                    answer = ask(lent.slot)
                    lent.n_computed = len(ids)
                    return answer
            yield

    def _fill(self, lent: Lent, until: int) -> None:
        """Compute keys and values of the tokens up to `until`."""
        ids = lent.ids[:until]
        while lent.n_computed < until:
            first = lent.n_computed
            some = ids[: first + self._runner.limits.max_rows]
            self._runner.submit(Step(_rows(lent.slot, some, first)))
            self._runner.collect()
            lent.n_computed = len(some)

    @contextmanager
    def _lent(self, ids: list[int], first: int) -> Iterator[Lent]:
        borrowed = self._scheduler.borrow(ids, first)
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

    @contextmanager
    def _lent_blank(self, n_tokens: int) -> Iterator[int]:
        """A slot with blocks for so many tokens, whatever they hold."""
        with self._lent([0] * n_tokens, 0) as lent:
            yield lent.slot

    # ---- bad questions ----------------------------------------------------------------------

    def _check_ids(self, ids: list[int], param: str) -> None:
        vocab = self._runner.config.vocab_size
        for id in ids:
            if not 0 <= id < vocab:
                raise InvalidRequest(f"{param} go from 0 to {vocab - 1}, but {id} is asked", param)

    def _check_place(self, ids: list[int], position: int, param: str = "position") -> None:
        self._check_ids(ids, "ids")
        context = self._runner.limits.context
        if len(ids) > context:
            raise InvalidRequest(
                f"{len(ids)} ids are more than the context of {context} tokens", "ids"
            )
        if not ids:
            raise InvalidRequest("ids are missing; give those of the run", "ids")
        if not 0 <= position < len(ids):
            raise InvalidRequest(
                f"{param} should be from 0 to {len(ids) - 1}, but is {position}",
                param,
            )


@dataclass(slots=True)
class Lent:
    """A slot whose blocks hold the keys and values of ids[:n_computed]."""

    slot: int
    ids: list[int]
    n_computed: int


def _rows(slot: int, ids: list[int], first: int) -> tuple[Row, ...]:
    return tuple(Row(slot, i, ids[i]) for i in range(first, len(ids)))


def _sampled(row: int, slot: int) -> Sample:
    """Asks for the logits of a row; nothing is drawn."""
    return Sample(row, slot, 0, 0, 0.0, 0, 1.0, 0.0, 1.0)


def _drawn(question: Waterfall) -> Sample:
    """The draw that a question is about."""
    params = question.params.validate()
    if params.seed is None:
        raise InvalidRequest("seed should be that of the run; without it there is no draw", "seed")
    most = 2**32 - 1 - params.first_index
    if not 0 <= question.index <= most:
        raise InvalidRequest(f"index should be from 0 to {most}, but is {question.index}", "index")
    return sample_of(params, row=0, slot=0, index=question.index)


def _check_top(top: int) -> None:
    if not 1 <= top <= MAX_TOP:
        raise InvalidRequest(f"top should be from 1 to {MAX_TOP}, but is {top}", "top")
