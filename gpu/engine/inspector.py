"""Answers questions about runs, a piece at a time, between the steps of the runs that write.

Works on the engine's thread, while no step is in flight. The rows in question are computed again
(`gpu.engine.lent_rows`), under the interventions that they were computed under.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

import numpy as np

from gpu.engine.lent_rows import LentRows
from gpu.engine.scheduler import Scheduler
from gpu.engine.sequence import sample_of
from gpu.engine.states import LastStates
from gpu.errors import InvalidRequest
from gpu.inspect.beam import beam_answer
from gpu.inspect.plan_questions import peaks_answer, plan_answer, profile_answer
from gpu.inspect.readings import LossReading, kv_reading, lens_reading, routing_reading
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
    Routing,
    Waterfall,
)
from gpu.interventions import (
    MAX_TEXT_TOKENS,
    Encode,
    Encoded,
    EncodedReached,
    Interventions,
    ReachedFrom,
    encode_interventions,
    encode_reached,
)
from gpu.kv.blocks import blocks_for
from gpu.reach import Course
from gpu.runner import Runner
from gpu.step import Floats, Look, Sample

MAX_TOP = 100
MAX_ANSWER_BYTES = 64 << 20
"""Largest answer about the attention of a text."""

Pieces = Generator[None, None, Answer]
"""Yields after each piece of work; its value is the answer."""


class Inspector:
    """Starts questions. Knows what was computed, not when. `encode`: of texts in interventions;
    `end_ids`: tokens that end a text, which the model's configuration need not name."""

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        rows: LentRows,
        states: LastStates,
        encode: Encode,
        end_ids: tuple[int, ...] = (),
    ) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._rows = rows
        self._states = states
        self._encode = encode
        self._end_ids = (*runner.config.eos_ids, *end_ids)
        self._latest: tuple[object, Floats] | None = None  # of what, logits after its last token

    def start(self, question: Question) -> Pieces:
        """Raises InvalidRequest for a question that cannot be answered. Advancing it raises
        QueueFull while the cache has no room for its tokens."""
        match question:
            case AttentionFrom(ids=ids, position=position):
                self._check_place(ids, position)
                self._check_bytes(position + 1)
                upto = ids[: position + 1]
                return self._under(question.reached, lambda c: self._attention_from(upto, c))
            case AttentionTo(ids=ids, position=position):
                self._check_place(ids, position)
                self._check_bytes(len(ids) - position)
                return self._under(question.reached, lambda c: self._attention_to(ids, position, c))
            case LogitLens(ids=ids, position=position):
                self._check_place(ids, position)
                self._check_ids([question.chosen], "chosen")
                _check_top(question.top)
                return self._under(question.reached, lambda c: self._logit_lens(question, c))
            case Waterfall(ids=ids, position=position):
                self._check_place(ids, position)
                _check_top(question.top)
                upto, sample = ids[: position + 1], _drawn(question)
                return self._under(
                    question.reached, lambda c: self._waterfall(upto, sample, question.top, c)
                )
            case Losses(ids=ids, first=first):
                self._check_place(ids, 0)
                _check_top(question.top)
                if len(ids) < 2:
                    raise InvalidRequest("one token has nothing before it; give two ids", "ids")
                self._check_place(ids[:-1], first, "first")
                return self._under(question.reached, lambda c: self._losses(question, c))
            case Beam(ids=ids):
                self._check_place(ids, 0)
                return self._under(question.reached, lambda c: self._beam(question, c))
            case Routing(ids=ids, first=first):
                if self._runner.config.experts is None:
                    raise InvalidRequest("this model has no experts; ask one that has", "kind")
                self._check_place(ids, first, "first")
                return self._under(question.reached, lambda c: self._routing(ids, first, c))
            case PlanView():
                return plan_answer(self._runner, question)
            case Profile():
                return profile_answer(self._runner, question, self._rows.blank)
            case CacheBlocks():
                return self._cache_blocks()
            case DevicePeaks():
                return peaks_answer(self._runner)

    def logits(
        self, ids: list[int], reached: tuple[ReachedFrom, ...] = ()
    ) -> Generator[None, None, Floats]:
        """(len(ids), vocab_size): after every one of `ids`, all computed anew in one piece."""
        course = yield from self._course(self._wanted(reached))
        return self._rows.all_logits(ids, course)

    # ---- the questions ----------------------------------------------------------------------

    def _attention_from(self, ids: list[int], course: Course) -> Pieces:
        last = len(ids) - 1
        found = yield from self._rows.inspect(ids, last, Look(keys=(0, len(ids))), course)
        assert found.attention is not None
        return Answer({}, (Array.of("weights", found.attention[0]),))

    def _attention_to(self, ids: list[int], position: int, course: Course) -> Pieces:
        parts, first = [], position
        while first < len(ids):
            end = course.end(first, min(first + self._rows.piece_rows("attention"), len(ids)))
            look = Look(keys=(position, 1))
            found = yield from self._rows.inspect(ids[:end], first, look, course)
            assert found.attention is not None
            parts.append(found.attention[..., 0])
            first = end
            yield
        return Answer({}, (Array.of("weights", np.concatenate(parts)),))

    def _logit_lens(self, question: LogitLens, course: Course) -> Pieces:
        ids = question.ids[: question.position + 1]
        found = yield from self._rows.inspect(ids, len(ids) - 1, Look(lens=True), course)
        assert found.lens is not None
        return lens_reading(found.lens, question.chosen, question.top)

    def _waterfall(self, ids: list[int], sample: Sample, top: int, course: Course) -> Pieces:
        """The logits are kept for the next question, which a slider asks right after."""
        asked = (ids, course.marks(len(ids)))
        if self._latest is None or self._latest[0] != asked:
            logits = yield from self._rows.logits(ids, len(ids) - 1, course)
            self._latest = (asked, logits)
        return waterfall(self._latest[1][0], ids, sample, top)

    def _losses(self, question: Losses, course: Course) -> Pieces:
        ids, at = question.ids, question.first
        reading = LossReading(question.top)
        while at < len(ids) - 1:
            size = self._rows.piece_rows("losses", self._rows.most_samples)
            end = course.end(at, min(at + size, len(ids) - 1))
            logits = yield from self._rows.logits(ids[:end], at, course)
            reading.add(logits, ids[at + 1 : end + 1])
            at = end
            yield
        return reading.answer()

    def _beam(self, question: Beam, course: Course) -> Pieces:
        def logits_after(ids: list[int]) -> Generator[None, None, Floats]:
            return self._rows.logits(ids, len(ids) - 1, course)

        return beam_answer(question, logits_after, self._end_ids, self._runner.limits.context)

    def _routing(self, ids: list[int], first: int, course: Course) -> Pieces:
        parts = []
        while first < len(ids):
            end = course.end(first, min(first + self._rows.piece_rows("routes"), len(ids)))
            found = yield from self._rows.inspect(ids[:end], first, Look(routes=True), course)
            assert found.routes is not None
            parts.append(found.routes)
            first = end
            yield
        return routing_reading(parts, self._runner.config)

    def _cache_blocks(self) -> Pieces:
        yield from ()
        return kv_reading(self._scheduler.kv_state())

    # ---- what acts on their tokens ----------------------------------------------------------

    def _under(self, reached: tuple[ReachedFrom, ...], ask: Callable[[Course], Pieces]) -> Pieces:
        """What `ask` answers under these interventions, whose texts are computed first."""
        return self._asked(self._wanted(reached), ask)

    def _asked(self, wanted: EncodedReached, ask: Callable[[Course], Pieces]) -> Pieces:
        course = yield from self._course(wanted)
        return (yield from ask(course))

    def _wanted(self, reached: tuple[ReachedFrom, ...]) -> EncodedReached:
        runner = self._runner
        most = min(MAX_TEXT_TOKENS, runner.limits.context)
        loras = [lora.name for lora in runner.loras]

        def encoded(reach: Interventions) -> Encoded:
            return encode_interventions(
                reach, runner.config, self._encode, param="reached", most=most, loras=loras
            )

        return encode_reached(reached, encoded)

    def _course(self, wanted: EncodedReached) -> Generator[None, None, Course]:
        course = Course()
        for first, encoded in wanted:
            setting = yield from self._states.setting(encoded)
            setting.lay(course, first, first)
        return course

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

    def _check_bytes(self, n_weights: int) -> None:
        """Refuse an answer of `n_weights` weights of every head where that is too large."""
        config = self._runner.config
        n_bytes = 4 * n_weights * config.n_layers * config.n_heads
        if n_bytes > MAX_ANSWER_BYTES:
            most = MAX_ANSWER_BYTES // (4 * config.n_layers * config.n_heads)
            raise InvalidRequest(
                f"the answer would have {n_bytes:,} bytes, of {n_weights} tokens; ask about "
                f"{most} tokens or fewer",
                "position",
            )


def blocks_of(question: Question) -> int:
    """KV blocks that hold a question's tokens while it is worked on."""
    match question:
        case Beam(ids=ids, width=width, depth=depth):
            return blocks_for(len(ids) + depth) + width * (blocks_for(depth) + 1)
        case Profile(context=context):
            return blocks_for(context)
        case PlanView() | CacheBlocks() | DevicePeaks():
            return 0
    return blocks_for(len(question.ids))


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
