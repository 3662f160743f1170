"""Answers to questions about runs, computed piece by piece between the steps of the runs.

Works on the engine's thread while no step is in flight. The rows in question are computed again
(`gpu.engine.recompute`) under their original interventions.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

import numpy as np
import numpy.typing as npt

from gpu.engine.activation_cache import ActivationCache
from gpu.engine.recompute import Recomputer
from gpu.engine.scheduler import Scheduler
from gpu.engine.validation import check_biased_ids
from gpu.errors import InvalidRequest
from gpu.inspection.beam import beam_answer
from gpu.inspection.forward_pass import compared_vectors, forward_reading
from gpu.inspection.plan_questions import peaks_answer, plan_answer, profile_answer
from gpu.inspection.readings import LossReading, expert_reading, kv_reading, lens_reading
from gpu.inspection.requests import (
    MAX_ANSWER_BYTES,
    MAX_TOP,
    AboutText,
    Answer,
    Array,
    AttentionFrom,
    AttentionTo,
    Beam,
    CacheBlocks,
    DevicePeaks,
    Embedding,
    ForwardPass,
    LogitLens,
    Losses,
    Profile,
    Question,
    RecentSteps,
    Routing,
    StepPlan,
    Waterfall,
)
from gpu.inspection.steps import step_reading
from gpu.inspection.waterfall import waterfall
from gpu.interventions.active import InterventionSchedule
from gpu.interventions.messages import (
    MAX_TEXT_TOKENS,
    Encode,
    EncodedInterventions,
    EncodedSpans,
    Interventions,
    InterventionSpan,
    encode_interventions,
    encode_spans,
)
from gpu.runner import Runner
from gpu.step import Floats, InspectionRequest, Sample

AnswerSteps = Generator[None, None, Answer]
"""Yields after each piece of work; its value is the answer."""

AllowedTokens = npt.NDArray[np.bool_] | None


class Inspector:
    """Answers questions; the caller decides when each piece runs.

    encode   tokenizes the texts in interventions
    end_ids  ids that end a text, in addition to those of the model's config
    """

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        recomputer: Recomputer,
        activations: ActivationCache,
        encode: Encode,
        end_ids: tuple[int, ...] = (),
    ) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._recomputer = recomputer
        self._activations = activations
        self._encode = encode
        self._end_ids = (*runner.config.eos_ids, *end_ids)
        self._latest: tuple[object, Floats] | None = None  # key, logits after its last token

    def start(self, question: Question, allowed: AllowedTokens = None) -> AnswerSteps:
        """Return the generator of the answer. `allowed` (vocab_size,): tokens that the grammar of a
        `Waterfall` allows; None: all. Raises InvalidRequest for a question that cannot be answered.
        Advancing it raises QueueFull if the KV cache has no room for its tokens."""
        match question:
            case AttentionFrom(ids=ids, position=position):
                self._check_place(ids, position)
                self._check_bytes(position + 1)
                upto = ids[: position + 1]
                return self._with_spans(question, lambda c: self._attention_from(upto, c))
            case AttentionTo(ids=ids, position=position):
                self._check_place(ids, position)
                self._check_bytes(len(ids) - position)
                return self._with_spans(question, lambda c: self._attention_to(ids, position, c))
            case LogitLens(ids=ids, position=position):
                self._check_place(ids, position)
                self._check_ids([question.chosen], "chosen")
                _check_top(question.top)
                return self._with_spans(question, lambda c: self._logit_lens(question, c))
            case ForwardPass():
                self._check_forward(question)
                return self._with_spans(question, lambda c: self._forward(question, c))
            case Waterfall():
                sample = self._check_waterfall(question)
                return self._with_spans(
                    question, lambda c: self._waterfall(question, sample, allowed, c)
                )
            case Losses(ids=ids, first=first):
                self._check_place(ids, 0)
                _check_top(question.top)
                if len(ids) < 2:
                    raise InvalidRequest("one token has nothing before it; give two ids", "ids")
                self._check_place(ids[:-1], first, "first")
                return self._with_spans(question, lambda c: self._losses(question, c))
            case Beam(ids=ids):
                self._check_place(ids, 0)
                return self._with_spans(question, lambda c: self._beam(question, c))
            case Routing(ids=ids, first=first):
                if self._runner.config.experts is None:
                    raise InvalidRequest("this model has no experts; ask one that has", "kind")
                self._check_place(ids, first, "first")
                return self._with_spans(question, lambda c: self._routing(ids, first, c))
            case Embedding(ids=ids):
                self._check_place(ids, 0)
                return self._with_spans(question, lambda c: self._embedding(question, c))
            case StepPlan():
                return plan_answer(self._runner, question)
            case Profile():
                return profile_answer(self._runner, question, self._recomputer.reserve)
            case CacheBlocks():
                return self._cache_blocks()
            case RecentSteps(after=after):
                return self._recent_steps(after)
            case DevicePeaks():
                return peaks_answer(self._runner)

    def logits(
        self, ids: list[int], spans: tuple[InterventionSpan, ...] = ()
    ) -> Generator[None, None, Floats]:
        """Return the logits after every id as (len(ids), vocab_size), all computed in one piece."""
        schedule = yield from self._schedule(self._encode_spans(spans))
        return self._recomputer.all_logits(ids, schedule)

    # ---- the questions ----------------------------------------------------------------------

    def _attention_from(self, ids: list[int], schedule: InterventionSchedule) -> AnswerSteps:
        last = len(ids) - 1
        found = yield from self._recomputer.inspect(
            ids, last, InspectionRequest(keys=(0, len(ids))), schedule
        )
        assert found.attention is not None
        return Answer({}, (Array.of("weights", found.attention[0]),))

    def _attention_to(
        self, ids: list[int], position: int, schedule: InterventionSchedule
    ) -> AnswerSteps:
        parts, first = [], position
        while first < len(ids):
            end = schedule.next_change(
                first, min(first + self._recomputer.piece_rows("attention"), len(ids))
            )
            request = InspectionRequest(keys=(position, 1))
            found = yield from self._recomputer.inspect(ids[:end], first, request, schedule)
            assert found.attention is not None
            parts.append(found.attention[..., 0])
            first = end
            yield
        return Answer({}, (Array.of("weights", np.concatenate(parts)),))

    def _logit_lens(self, question: LogitLens, schedule: InterventionSchedule) -> AnswerSteps:
        ids = question.ids[: question.position + 1]
        found = yield from self._recomputer.inspect(
            ids, len(ids) - 1, InspectionRequest(lens=True), schedule
        )
        assert found.lens is not None
        return lens_reading(found.lens, question.chosen, question.top)

    def _forward(self, question: ForwardPass, schedule: InterventionSchedule) -> AnswerSteps:
        ids = question.ids[: question.position + 1]
        request = InspectionRequest(
            keys=(0, len(ids)),
            states=True,
            last_hidden=True,
            layer=(question.layer, question.head),
        )
        found = yield from self._recomputer.inspect(ids, len(ids) - 1, request, schedule)
        logits = self._runner.unembed(compared_vectors(found))
        return forward_reading(found, logits, question, self._runner.config)

    def _waterfall(
        self,
        question: Waterfall,
        sample: Sample,
        allowed: AllowedTokens,
        schedule: InterventionSchedule,
    ) -> AnswerSteps:
        """Filter the logits at the last id. They are cached, because a moving slider asks again."""
        ids = question.ids[: question.position + 1]
        asked = (ids, schedule.digests(len(ids)), schedule.cache_salt)
        if self._latest is None or self._latest[0] != asked:
            logits = yield from self._recomputer.logits(ids, len(ids) - 1, schedule)
            self._latest = (asked, logits)
        return waterfall(self._latest[1][0], ids, sample, question.top, allowed, question.also)

    def _losses(self, question: Losses, schedule: InterventionSchedule) -> AnswerSteps:
        ids, at = question.ids, question.first
        reading = LossReading(question.top)
        while at < len(ids) - 1:
            size = self._recomputer.piece_rows("losses", self._recomputer.max_samples)
            end = schedule.next_change(at, min(at + size, len(ids) - 1))
            logits = yield from self._recomputer.logits(ids[:end], at, schedule)
            reading.add(logits, ids[at + 1 : end + 1])
            at = end
            yield
        return reading.answer()

    def _beam(self, question: Beam, schedule: InterventionSchedule) -> AnswerSteps:
        def logits_after(ids: list[int]) -> Generator[None, None, Floats]:
            return self._recomputer.logits(ids, len(ids) - 1, schedule)

        return beam_answer(question, logits_after, self._end_ids, self._runner.limits.context)

    def _routing(self, ids: list[int], first: int, schedule: InterventionSchedule) -> AnswerSteps:
        parts = []
        while first < len(ids):
            end = schedule.next_change(
                first, min(first + self._recomputer.piece_rows("routes"), len(ids))
            )
            found = yield from self._recomputer.inspect(
                ids[:end], first, InspectionRequest(routes=True), schedule
            )
            assert found.routes is not None
            parts.append(found.routes)
            first = end
            yield
        return expert_reading(parts, self._runner.config)

    def _embedding(self, question: Embedding, schedule: InterventionSchedule) -> AnswerSteps:
        ids, request = question.ids, InspectionRequest(last_hidden=True)
        at = len(ids) - 1 if question.pooling == "last" else 0
        n_rows, total = len(ids) - at, np.zeros(self._runner.config.hidden_size)
        while at < len(ids):
            size = self._recomputer.piece_rows("last_hidden", self._recomputer.most_rows)
            end = schedule.next_change(at, min(at + size, len(ids)))
            found = yield from self._recomputer.inspect(ids[:end], at, request, schedule)
            assert found.last_hidden is not None
            total += found.last_hidden.sum(axis=0, dtype=np.float64)
            at = end
            yield
        return Answer({}, (Array.of("vector", total / n_rows),))

    def _cache_blocks(self) -> AnswerSteps:
        yield from ()
        return kv_reading(self._scheduler.kv_state())

    def _recent_steps(self, after: int) -> AnswerSteps:
        yield from ()
        return step_reading(self._scheduler.steps.read(after))

    # ---- interventions -----------------------------------------------------------------------

    def _with_spans(
        self, question: AboutText, ask: Callable[[InterventionSchedule], AnswerSteps]
    ) -> AnswerSteps:
        """Return the answer of `ask` with the interventions of the question's spans, whose steering
        texts are computed first."""
        encoded = self._encode_spans(question.spans)
        return self._with_interventions(encoded, question.cache_salt, ask)

    def _with_interventions(
        self,
        encoded: EncodedSpans,
        cache_salt: str,
        ask: Callable[[InterventionSchedule], AnswerSteps],
    ) -> AnswerSteps:
        schedule = yield from self._schedule(encoded, cache_salt)
        return (yield from ask(schedule))

    def _encode_spans(self, spans: tuple[InterventionSpan, ...]) -> EncodedSpans:
        runner = self._runner
        most = min(MAX_TEXT_TOKENS, runner.limits.context)
        loras = [lora.name for lora in runner.loras]

        def encode(interventions: Interventions) -> EncodedInterventions:
            return encode_interventions(
                interventions, runner.config, self._encode, param="reached", most=most, loras=loras
            )

        return encode_spans(spans, encode)

    def _schedule(
        self, encoded: EncodedSpans, cache_salt: str = ""
    ) -> Generator[None, None, InterventionSchedule]:
        schedule = InterventionSchedule(cache_salt)
        for first, one in encoded:
            resolved = yield from self._activations.resolve(one)
            resolved.add_to(schedule, first, first)
        return schedule

    # ---- validation -------------------------------------------------------------------------

    def _check_ids(self, ids: list[int], param: str) -> None:
        vocab = self._runner.config.vocab_size
        for id in ids:
            if not 0 <= id < vocab:
                raise InvalidRequest(
                    f"{param} should be from 0 to {vocab - 1}, but got {id}", param
                )

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

    def _check_waterfall(self, question: Waterfall) -> Sample:
        """Return the draw that `question` is about."""
        self._check_place(question.ids, question.position)
        self._check_ids(question.also, "also")
        _check_top(question.top)
        _check_also(question.also)
        return _sample_of_question(question, self._runner.config.vocab_size)

    def _check_forward(self, question: ForwardPass) -> None:
        self._check_place(question.ids, question.position)
        self._check_bytes(question.position + 1)
        _check_top(question.top)
        config = self._runner.config
        for name, n in (("layer", config.n_layers), ("head", config.n_heads)):
            if not 0 <= getattr(question, name) < n:
                raise InvalidRequest(
                    f"{name} should be from 0 to {n - 1}, but is {getattr(question, name)}", name
                )

    def _check_bytes(self, n_weights: int) -> None:
        """Raise InvalidRequest if an answer of `n_weights` weights per head is too large."""
        config = self._runner.config
        n_bytes = 4 * n_weights * config.n_layers * config.n_heads
        if n_bytes > MAX_ANSWER_BYTES:
            most = MAX_ANSWER_BYTES // (4 * config.n_layers * config.n_heads)
            raise InvalidRequest(
                f"the answer would have {n_bytes:,} bytes for the attention of {n_weights} tokens; "
                f"ask about {most} tokens or fewer",
                "position",
            )


def question_blocks(question: Question, blocks_for: Callable[[int], int]) -> int:
    """Return the KV blocks that a question's tokens need while it is answered. `blocks_for`: those
    of so many tokens."""
    match question:
        case Beam(ids=ids, width=width, depth=depth):
            return blocks_for(len(ids) + depth) + width * (blocks_for(depth) + 1)
        case Profile(context=context):
            return blocks_for(context)
        case StepPlan() | CacheBlocks() | RecentSteps() | DevicePeaks():
            return 0
    return blocks_for(len(question.ids))


def _sample_of_question(question: Waterfall, vocab_size: int) -> Sample:
    """Return the draw that `question` is about."""
    params = question.params.validate()
    check_biased_ids(params, vocab_size)
    if params.seed is None:
        raise InvalidRequest("seed should be that of the run; without it there is no draw", "seed")
    most = 2**32 - 1 - params.first_index
    if not 0 <= question.index <= most:
        raise InvalidRequest(f"index should be from 0 to {most}, but is {question.index}", "index")
    return Sample.of(params, row=0, slot=0, index=question.index)


def _check_top(top: int) -> None:
    if not 1 <= top <= MAX_TOP:
        raise InvalidRequest(f"top should be from 1 to {MAX_TOP}, but is {top}", "top")


def _check_also(also: list[int]) -> None:
    if len(also) > MAX_TOP:
        raise InvalidRequest(f"also has {len(also)} ids, but {MAX_TOP} are the most", "also")
