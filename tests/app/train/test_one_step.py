"""One step on a text is that of PyTorch's own model, with the optimisers' formulas."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import transformers

from app.train.messages import MatrixStep, OneStep, Optimizer, StepJob
from app.train.one_step import take_step
from tests.gpu.models import random_models

IDS = random_models.ids(11, seed=4)
RATE = 3e-3


def losses(model: Any) -> torch.Tensor:
    logits = model(input_ids=torch.tensor([IDS])).logits[0]
    return torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(IDS[1:]), reduction="none")


def named(model: Any) -> dict[tuple[int | None, str], torch.Tensor]:
    """Return the parameters as they are named in a step."""
    found: dict[tuple[int | None, str], torch.Tensor] = {}
    for name, weight in model.named_parameters():
        parts = name.removesuffix(".weight").split(".")
        at = next((i for i, part in enumerate(parts) if part.isdigit()), None)
        layer, rest = (None, parts[-1:]) if at is None else (int(parts[at]), parts[at + 1 :])
        found[layer, ".".join(rest)] = weight
    return found


@pytest.mark.parametrize("name", ["mistral", "gpt2"])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_step_is_that_of_the_formulas(name: str, optimizer: Optimizer) -> None:
    folder = random_models.folder(name)
    step = take_step(StepJob(str(folder), name, tuple(IDS), RATE, optimizer))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    before = losses(model)
    assert [-each for each in step.before] == pytest.approx(before.tolist(), rel=1e-4)
    weights = named(model)
    gradients = torch.autograd.grad(before.mean(), list(weights.values()))
    found = {(matrix.layer, matrix.name): matrix for matrix in step.matrices}
    assert found.keys() == weights.keys()
    with torch.no_grad():
        for (place, weight), gradient in zip(weights.items(), gradients, strict=True):
            # The first step of Adam: both moments are the gradient's own.
            scaled = gradient / (gradient.abs() + 1e-8) if optimizer == "adamw" else gradient
            assert_norms(found[place], gradient, RATE * scaled, weight)
            weight -= RATE * scaled
        after = losses(model)
    assert [-each for each in step.after] == pytest.approx(after.tolist(), rel=1e-3)
    assert mean(step, "after") > mean(step, "before")


def assert_norms(
    found: MatrixStep, gradient: torch.Tensor, change: torch.Tensor, weight: torch.Tensor
) -> None:
    assert found.gradient == pytest.approx(gradient.norm().item(), rel=1e-3, abs=1e-7)
    assert found.change == pytest.approx(change.norm().item(), rel=1e-2, abs=1e-6)
    assert found.weight == pytest.approx(weight.norm().item(), rel=1e-5)


def mean(step: OneStep, which: str) -> float:
    return math.fsum(getattr(step, which)) / len(step.before)
