"""Routing: which experts each token of a text was routed to."""

from __future__ import annotations

from gpu.engine.questions.model import AnswerSteps, QuestionedModel
from gpu.errors import InvalidRequest
from gpu.inspection.readings import expert_reading
from gpu.inspection.requests import Routing
from gpu.interventions.active import InterventionSchedule
from gpu.step import InspectionRequest


def check(question: Routing, model: QuestionedModel) -> None:
    if model.runner.config.experts is None:
        raise InvalidRequest("this model has no experts; ask one that has", "kind")
    model.check_place(question.ids, question.first, "first")


def answer(
    question: Routing, model: QuestionedModel, schedule: InterventionSchedule
) -> AnswerSteps:
    ids, request, parts = question.ids, InspectionRequest(routes=True), []
    for first, end in model.pieces(question.first, len(ids), schedule, "routes"):
        found = yield from model.recomputer.inspect(ids[:end], first, request, schedule)
        assert found.routes is not None
        parts.append(found.routes)
        yield
    return expert_reading(parts, model.runner.config)
