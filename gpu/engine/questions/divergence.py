"""Divergence: what changes when attention reads rounded keys and values, or those of a window."""

from __future__ import annotations

from gpu.engine.questions.model import AnswerSteps, QuestionedModel
from gpu.engine.recompute import OWN_PASS, PIECE_ROWS, PassVariant
from gpu.errors import InvalidRequest, ModelError
from gpu.inspection.readings import DivergenceReading
from gpu.inspection.requests import MAX_ANSWER_BYTES, Divergence
from gpu.interventions.active import InterventionSchedule
from gpu.kv.formats import pack_block
from gpu.step import InspectionRequest, KvVariant


def check(question: Divergence, model: QuestionedModel) -> None:
    model.check_place(question.ids, question.first, "first")
    config, kv = model.runner.config, variant_of(question)
    if kv == KvVariant():
        raise InvalidRequest("nothing would change; give keys, values or window", "window")
    context = model.runner.limits.context
    if kv.window is not None and not 0 <= kv.window <= context:
        raise InvalidRequest(f"window should be from 0 to {context}, but is {kv.window}", "window")
    if kv.rounds:
        try:
            pack_block(config.head_dim)
        except ModelError as error:
            raise InvalidRequest(str(error), "keys") from error
    most = MAX_ANSWER_BYTES // (4 * PIECE_ROWS * config.n_layers * config.n_heads)
    if len(question.ids) > most:
        raise InvalidRequest(
            f"the attention of {len(question.ids)} tokens takes too much memory in this model; ask "
            f"about {most} tokens or fewer",
            "ids",
        )


def variant_of(question: Divergence) -> KvVariant:
    return KvVariant(question.keys, question.values, question.window)


def answer(
    question: Divergence, model: QuestionedModel, schedule: InterventionSchedule
) -> AnswerSteps:
    ids, kv, again = question.ids, variant_of(question), model.recomputer
    reading = DivergenceReading(len(ids), question.first, model.runner.limits.windows, kv)
    most = min(PIECE_ROWS, again.max_samples)
    for first, end in model.pieces(question.first, len(ids), schedule, "divergence", most):
        passes = []
        for variant in (OWN_PASS, PassVariant(kv=kv)):
            logits = yield from again.logits(ids[:end], first, schedule, variant)
            yield
            request = InspectionRequest(keys=(0, end))
            seen = yield from again.inspect(ids[:end], first, request, schedule, variant)
            yield
            assert seen.attention is not None
            passes.append((logits, seen.attention))
        reading.add(*passes)
    return reading.answer()
