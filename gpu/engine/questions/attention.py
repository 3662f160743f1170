"""Attention weights: what a token attended to, and which later tokens attended to it."""

from __future__ import annotations

import numpy as np

from gpu.engine.questions.model import AnswerSteps, QuestionedModel
from gpu.inspection.requests import Answer, Array, AttentionFrom, AttentionTo
from gpu.interventions.active import InterventionSchedule
from gpu.step import InspectionRequest


def check_from(question: AttentionFrom, model: QuestionedModel) -> None:
    model.check_place(question.ids, question.position)
    model.check_bytes(question.position + 1)


def answer_from(
    question: AttentionFrom, model: QuestionedModel, schedule: InterventionSchedule
) -> AnswerSteps:
    ids = question.ids[: question.position + 1]
    request = InspectionRequest(keys=(0, len(ids)))
    found = yield from model.recomputer.inspect(ids, len(ids) - 1, request, schedule)
    assert found.attention is not None
    return Answer({}, (Array.of("weights", found.attention[0]),))


def check_to(question: AttentionTo, model: QuestionedModel) -> None:
    model.check_place(question.ids, question.position)
    model.check_bytes(len(question.ids) - question.position)


def answer_to(
    question: AttentionTo, model: QuestionedModel, schedule: InterventionSchedule
) -> AnswerSteps:
    ids, position, parts = question.ids, question.position, []
    request = InspectionRequest(keys=(position, 1))
    for first, end in model.pieces(position, len(ids), schedule, "attention"):
        found = yield from model.recomputer.inspect(ids[:end], first, request, schedule)
        assert found.attention is not None
        parts.append(found.attention[..., 0])
        yield
    return Answer({}, (Array.of("weights", np.concatenate(parts)),))
