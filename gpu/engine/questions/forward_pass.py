"""Forward pass: the numbers of one layer and head for one token."""

from __future__ import annotations

from gpu.engine.questions.model import AnswerSteps, QuestionedModel, check_top
from gpu.errors import InvalidRequest
from gpu.inspection.forward_pass import compared_vectors, forward_reading
from gpu.inspection.requests import ForwardPass
from gpu.interventions.active import InterventionSchedule
from gpu.step import InspectionRequest


def check(question: ForwardPass, model: QuestionedModel) -> None:
    model.check_place(question.ids, question.position)
    model.check_bytes(question.position + 1)
    check_top(question.top)
    config = model.runner.config
    for name, n in (("layer", config.n_layers), ("head", config.n_heads)):
        if not 0 <= getattr(question, name) < n:
            raise InvalidRequest(
                f"{name} should be from 0 to {n - 1}, but is {getattr(question, name)}", name
            )


def answer(
    question: ForwardPass, model: QuestionedModel, schedule: InterventionSchedule
) -> AnswerSteps:
    ids = question.ids[: question.position + 1]
    request = InspectionRequest(
        keys=(0, len(ids)),
        states=True,
        last_hidden=True,
        layer=(question.layer, question.head),
    )
    found = yield from model.recomputer.inspect(ids, len(ids) - 1, request, schedule)
    logits = model.runner.unembed(compared_vectors(found))
    return forward_reading(found, logits, question, model.runner.config)
