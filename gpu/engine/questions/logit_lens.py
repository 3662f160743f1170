"""Logit lens: what every layer would have predicted after a token."""

from __future__ import annotations

from gpu.engine.questions.model import AnswerSteps, QuestionedModel, check_top
from gpu.inspection.readings import lens_reading
from gpu.inspection.requests import LogitLens
from gpu.interventions.active import InterventionSchedule
from gpu.step import InspectionRequest


def check(question: LogitLens, model: QuestionedModel) -> None:
    model.check_place(question.ids, question.position)
    model.check_ids([question.chosen], "chosen")
    check_top(question.top)


def answer(
    question: LogitLens, model: QuestionedModel, schedule: InterventionSchedule
) -> AnswerSteps:
    ids, request = question.ids[: question.position + 1], InspectionRequest(lens=True)
    found = yield from model.recomputer.inspect(ids, len(ids) - 1, request, schedule)
    assert found.lens is not None
    return lens_reading(found.lens, question.chosen, question.top)
