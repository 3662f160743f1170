"""Intervention effect: how far interventions move the predictions of a text."""

from __future__ import annotations

from collections.abc import Callable, Generator

from gpu.engine.questions.model import AnswerSteps, QuestionedModel
from gpu.inspection.readings import EffectReading
from gpu.inspection.requests import InterventionEffect
from gpu.interventions.active import InterventionSchedule

ScheduleOfBase = Callable[[], Generator[None, None, InterventionSchedule]]
"""Computes the schedule of `InterventionEffect.base`."""


def check(question: InterventionEffect, model: QuestionedModel) -> None:
    model.check_place(question.ids, question.first, "first")


def answer(
    question: InterventionEffect,
    base_schedule: ScheduleOfBase,
    model: QuestionedModel,
    schedule: InterventionSchedule,
) -> AnswerSteps:
    base = yield from base_schedule()
    ids, reading, most = question.ids, EffectReading(), model.recomputer.max_samples
    first = question.first
    while first < len(ids):
        size = model.recomputer.piece_rows("losses", most)
        end = base.next_change(first, schedule.next_change(first, min(first + size, len(ids))))
        reference = yield from model.recomputer.logits(ids[:end], first, base)
        yield
        logits = yield from model.recomputer.logits(ids[:end], first, schedule)
        reading.add(reference, logits, ids[first + 1 : end + 1])
        yield
        first = end
    return reading.answer()
