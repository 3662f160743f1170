"""Losses: how surprising each token of a text was."""

from __future__ import annotations

from gpu.engine.questions.model import AnswerSteps, QuestionedModel, check_top
from gpu.engine.recompute import PassVariant
from gpu.errors import InvalidRequest
from gpu.inspection.readings import LossReading
from gpu.inspection.requests import Knockout, Losses
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
    if question.knockout is not None:
        _check_knockout(question.knockout, question, model)


def _check_knockout(knockout: Knockout, question: Losses, model: QuestionedModel) -> None:
    config, n_read = model.runner.config, len(question.ids) - 1
    for first, end, n, what in (
        (knockout.first, knockout.end, n_read, "positions"),
        (knockout.first_layer, knockout.end_layer, config.n_layers, "layers"),
    ):
        if not 0 <= first < end <= n:
            raise InvalidRequest(
                f"expected {what} from 0 to {n - 1}, at least one, but got {first} to {end - 1}",
                "knockout",
            )
    if knockout.head is not None and not 0 <= knockout.head < config.n_heads:
        raise InvalidRequest(
            f"expected a head from 0 to {config.n_heads - 1}, or none for all of them, but got "
            f"{knockout.head}",
            "knockout",
        )
    last = knockout.end - 1  # a later token sees itself, an earlier one no fewer tokens before
    for layer in range(knockout.first_layer, knockout.end_layer):
        window = config.sliding_window_of(layer)
        seen = max(0, last + 1 - window) if window else 0
        if question.first <= last and knockout.first <= seen:
            raise InvalidRequest(
                f"the token at position {last} would have nothing left to attend to in layer "
                f"{layer}; leave a token before it",
                "knockout",
            )


def _masked(knockout: Knockout, model: QuestionedModel) -> dict[tuple[int, int], tuple[int, int]]:
    """Return what is masked, see `ActiveInterventions.masked`."""
    one = knockout.head
    heads = range(model.runner.config.n_heads) if one is None else (one,)
    layers = range(knockout.first_layer, knockout.end_layer)
    return {(i, head): (knockout.first, knockout.end) for i in layers for head in heads}


def answer(question: Losses, model: QuestionedModel, schedule: InterventionSchedule) -> AnswerSteps:
    ids, reading, most = question.ids, LossReading(question.top), model.recomputer.max_samples
    variant = PassVariant(rope=question.rope)
    if (knockout := question.knockout) is not None:
        schedule = schedule.with_masked(question.first, _masked(knockout, model))
    for first, end in model.pieces(question.first, len(ids) - 1, schedule, "losses", most):
        logits = yield from model.recomputer.logits(ids[:end], first, schedule, variant)
        reading.add(logits, ids[first + 1 : end + 1])
        yield
    return reading.answer()
