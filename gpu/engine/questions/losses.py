"""Losses: how surprising each token of a text was."""

from __future__ import annotations

from gpu.engine.questions.model import AnswerSteps, QuestionedModel, check_top
from gpu.engine.recompute import PassVariant
from gpu.errors import InvalidRequest
from gpu.inspection.readings import LossReading
from gpu.inspection.requests import Losses
from gpu.interventions.active import InterventionSchedule


def check(question: Losses, model: QuestionedModel) -> None:
    model.check_place(question.ids, 0)
    check_top(question.top)
    if len(question.ids) < 2:
        raise InvalidRequest("one token has nothing before it; give two ids", "ids")
    model.check_place(question.ids[:-1], question.first, "first")
    if not question.rope and model.runner.config.rotary_dim == 0:
        raise InvalidRequest(
            "rope can be switched off only in a model that has rotary positions (RoPE), and this "
            "one has none; leave it out",
            "rope",
        )


def answer(question: Losses, model: QuestionedModel, schedule: InterventionSchedule) -> AnswerSteps:
    ids, reading, most = question.ids, LossReading(question.top), model.recomputer.max_samples
    variant = PassVariant(rope=question.rope)
    for first, end in model.pieces(question.first, len(ids) - 1, schedule, "losses", most):
        logits = yield from model.recomputer.logits(ids[:end], first, schedule, variant)
        reading.add(logits, ids[first + 1 : end + 1])
        yield
    return reading.answer()
