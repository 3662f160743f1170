"""Answers to questions about runs, computed piece by piece between the steps of the runs.

Works on the engine's thread while no step is in flight. The rows in question are computed again
(`gpu.engine.recompute`) under their original interventions.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial

from gpu.engine.activation_cache import ActivationCache
from gpu.engine.questions import (
    attention,
    beam,
    divergence,
    embedding,
    encode,
    forward_pass,
    intervention_effect,
    logit_lens,
    losses,
    neighbours,
    routing,
    seq2seq,
)
from gpu.engine.questions.model import AnswerSteps, QuestionedModel
from gpu.engine.questions.waterfall import AllowedTokens, Waterfalls, checked_sample
from gpu.engine.recompute import Recomputer
from gpu.engine.scheduler import Scheduler
from gpu.inspection.plan_questions import (
    digest_answer,
    peaks_answer,
    plan_answer,
    profile_answer,
)
from gpu.inspection.readings import kv_reading
from gpu.inspection.requests import (
    AboutText,
    AttentionFrom,
    AttentionTo,
    Beam,
    CacheBlocks,
    DevicePeaks,
    Divergence,
    Embedding,
    Encode,
    EncoderAttention,
    ForwardPass,
    InterventionEffect,
    LogitLens,
    Losses,
    Neighbours,
    Profile,
    Question,
    RecentSteps,
    Routing,
    Seq2Seq,
    StepPlan,
    Waterfall,
    WeightsDigest,
)
from gpu.inspection.steps import step_reading
from gpu.interventions.active import InterventionSchedule
from gpu.interventions.messages import (
    MAX_TEXT_TOKENS,
    EncodedInterventions,
    EncodedSpans,
    Interventions,
    InterventionSpan,
    encode_interventions,
    encode_spans,
)
from gpu.interventions.messages import Encode as Tokenize
from gpu.runner import NO_ENCODERS, Encoders, Runner
from gpu.step import Floats

ABOUT_TEXTS: dict[type[AboutText], tuple[Callable[..., None], Callable[..., AnswerSteps]]] = {
    AttentionFrom: (attention.check_from, attention.answer_from),
    AttentionTo: (attention.check_to, attention.answer_to),
    LogitLens: (logit_lens.check, logit_lens.answer),
    ForwardPass: (forward_pass.check, forward_pass.answer),
    Losses: (losses.check, losses.answer),
    Divergence: (divergence.check, divergence.answer),
    Beam: (beam.check, beam.answer),
    Routing: (routing.check, routing.answer),
    Embedding: (embedding.check, embedding.answer),
}
"""What checks each question about a text, and what answers it. `Waterfall` is another: it also has
a grammar, and keeps its logits; `InterventionEffect` compares two settings."""


class Inspector:
    """Answers questions; the caller decides when each piece runs.

    tokenize  gives the ids of texts in interventions
    end_ids   ids that end a text, in addition to those of the model's config
    encoders  the embedding model and the encoder-decoder, if there are any
    """

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        recomputer: Recomputer,
        activations: ActivationCache,
        tokenize: Tokenize,
        end_ids: tuple[int, ...] = (),
        encoders: Encoders = NO_ENCODERS,
    ) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._activations = activations
        self._tokenize = tokenize
        self._encoder = encoders.embedding
        self._seq2seq = seq2seq.Seq2SeqAnswers(encoders.encoder_decoder, recomputer.budget)
        self._model = QuestionedModel(runner, recomputer, (*runner.config.eos_ids, *end_ids))
        self._waterfalls = Waterfalls(self._model)

    def start(self, question: Question, allowed: AllowedTokens = None) -> AnswerSteps:
        """Return the generator of the answer. `allowed`: of the grammar of a `Waterfall`. Raises
        InvalidRequest for a question that cannot be answered. Advancing it raises QueueFull if the
        KV cache has no room for its tokens."""
        match question:
            case StepPlan():
                return plan_answer(self._runner, question)
            case Profile():
                return profile_answer(self._runner, question, self._model.recomputer.reserve)
            case CacheBlocks():
                return self._cache_blocks()
            case RecentSteps(after=after):
                return self._recent_steps(after)
            case DevicePeaks():
                return peaks_answer(self._runner)
            case WeightsDigest():
                return digest_answer(self._runner)
            case Neighbours():
                neighbours.check(question, self._model)
                return neighbours.answer(question, self._model)
            case Encode():
                encoder = encode.check(question, self._encoder)
                return encode.answer(question, encoder, self._model.recomputer.budget)
            case EncoderAttention():
                encoder = encode.check_attention(question, self._encoder)
                return encode.answer_attention(question, encoder, self._model.recomputer.budget)
            case Seq2Seq():
                return self._seq2seq.start(question)
            case Waterfall():
                sample = checked_sample(question, self._model)
                answer = partial(self._waterfalls.answer, question, sample, allowed)
            case InterventionEffect():
                intervention_effect.check(question, self._model)
                spans = self._encode_spans(question.base, "base")
                base = partial(self._schedule, spans, question.cache_salt)
                answer = partial(intervention_effect.answer, question, base, self._model)
            case _:
                check, answer_of = ABOUT_TEXTS[type(question)]
                check(question, self._model)
                answer = partial(answer_of, question, self._model)
        return self._with_spans(question, answer)

    def logits(
        self, ids: list[int], spans: tuple[InterventionSpan, ...] = ()
    ) -> Generator[None, None, Floats]:
        """Return the logits after every id as (len(ids), vocab_size), all computed in one piece."""
        schedule = yield from self._schedule(self._encode_spans(spans))
        return self._model.recomputer.all_logits(ids, schedule)

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

    def _encode_spans(
        self, spans: tuple[InterventionSpan, ...], param: str = "reached"
    ) -> EncodedSpans:
        runner = self._runner
        most = min(MAX_TEXT_TOKENS, runner.limits.context)
        loras = [lora.name for lora in runner.loras]

        def encoded(interventions: Interventions) -> EncodedInterventions:
            return encode_interventions(
                interventions,
                runner.config,
                self._tokenize,
                param=param,
                most=most,
                loras=loras,
            )

        return encode_spans(spans, encoded)

    def _schedule(
        self, encoded: EncodedSpans, cache_salt: str = ""
    ) -> Generator[None, None, InterventionSchedule]:
        schedule = InterventionSchedule(cache_salt)
        for first, one in encoded:
            resolved = yield from self._activations.resolve(one)
            resolved.add_to(schedule, first, first)
        return schedule


def question_blocks(question: Question, blocks_for: Callable[..., int]) -> int:
    """Return the KV blocks that a question's tokens need while it is answered. `blocks_for`: see
    `gpu.engine.kv_manager.KvManager.most_blocks`."""
    match question:
        case Divergence(ids=ids, window=int()):
            return blocks_for(len(ids), all_read=True)
        case Beam(ids=ids, width=width, depth=depth):
            return blocks_for(len(ids) + depth) + width * (blocks_for(depth) + 1)
        case Profile(context=context):
            return blocks_for(context)
        case Encode() | StepPlan() | CacheBlocks() | RecentSteps() | DevicePeaks():
            return 0
        case WeightsDigest() | Neighbours() | EncoderAttention() | Seq2Seq():
            return 0
    return blocks_for(len(question.ids))
