"""Shapes of tensors from a config, beside those of files and of published models."""

from __future__ import annotations

import math

import pytest

from gpu.architectures.common.tensor_map import STACKED
from gpu.checkpoint.config_shapes import Shape, config_shapes
from gpu.checkpoint.open_model import open_model
from tests.gpu.models import random_models
from tests.gpu.models.random_models import ONE_OF_EACH, ONE_OF_EACH_MOE


@pytest.mark.parametrize("name", [*ONE_OF_EACH, *ONE_OF_EACH_MOE])
def test_the_shapes_are_those_that_transformers_saves(name: str) -> None:
    config, checkpoint = open_model(random_models.folder(name))
    saved = {tensor: checkpoint.shape(tensor) for tensor in checkpoint.names()}
    computed = config_shapes(config, stacked=any(map(is_stacked, saved)))
    assert size_of_experts(computed) == size_of_experts(saved)
    assert of_all_tokens(computed) == of_all_tokens(saved)


@pytest.mark.parametrize("name", ONE_OF_EACH_MOE)
def test_stacked_experts_have_the_numbers_of_experts_apart(name: str) -> None:
    config, _ = open_model(random_models.folder(name))
    together, apart = (config_shapes(config, stacked=stacked) for stacked in (True, False))
    assert len(together) < len(apart)
    assert size_of_experts(together) == size_of_experts(apart)
    assert of_all_tokens(together) == of_all_tokens(apart)


def is_stacked(name: str) -> bool:
    return name.endswith(STACKED)


def size_of_experts(shapes: dict[str, Shape]) -> int:
    return sum(math.prod(shape) for name, shape in shapes.items() if ".experts." in name)


def of_all_tokens(shapes: dict[str, Shape]) -> dict[str, Shape]:
    """Return the shapes of all but the experts, under the names of newer files."""
    return {
        name.replace("block_sparse_moe.gate", "mlp.gate"): shape
        for name, shape in shapes.items()
        if ".experts." not in name
    }
