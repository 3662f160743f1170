"""Embedding: the mean of a text's last hidden states, or that of its last token."""

from __future__ import annotations

import numpy as np

from gpu.engine.questions.model import AnswerSteps, QuestionedModel
from gpu.inspection.requests import Answer, Array, Embedding
from gpu.interventions.active import InterventionSchedule
from gpu.step import InspectionRequest


def check(question: Embedding, model: QuestionedModel) -> None:
    model.check_place(question.ids, 0)


def answer(
    question: Embedding, model: QuestionedModel, schedule: InterventionSchedule
) -> AnswerSteps:
    ids, recomputer = question.ids, model.recomputer
    at = len(ids) - 1 if question.pooling == "last" else 0
    n_rows, total = len(ids) - at, np.zeros(model.runner.config.hidden_size)
    request = InspectionRequest(last_hidden=True)
    while at < len(ids):
        size = recomputer.piece_rows("last_hidden", recomputer.most_rows)
        end = schedule.next_change(at, min(at + size, len(ids)))
        found = yield from recomputer.inspect(ids[:end], at, request, schedule)
        assert found.last_hidden is not None
        total += found.last_hidden.sum(axis=0, dtype=np.float64)
        at = end
        yield
    return Answer({}, (Array.of("vector", total / n_rows),))
