"""Beam: the most likely continuations of a text."""

from __future__ import annotations

from collections.abc import Generator

from gpu.engine.questions.model import AnswerSteps, QuestionedModel
from gpu.inspection.beam import beam_answer
from gpu.inspection.requests import Beam
from gpu.interventions.active import InterventionSchedule
from gpu.step import Floats


def check(question: Beam, model: QuestionedModel) -> None:
    model.check_place(question.ids, 0)


def answer(question: Beam, model: QuestionedModel, schedule: InterventionSchedule) -> AnswerSteps:
    def logits_after(ids: list[int]) -> Generator[None, None, Floats]:
        return model.recomputer.logits(ids, len(ids) - 1, schedule)

    return beam_answer(question, logits_after, model.end_ids, model.runner.limits.context)
