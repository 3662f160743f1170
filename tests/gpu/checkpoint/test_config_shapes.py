"""Shapes of tensors from a config, beside those of files and of published models."""

from __future__ import annotations

import math

import pytest

from gpu.architectures.common.tensor_map import STACKED
from gpu.checkpoint.config_shapes import config_shapes
from gpu.checkpoint.open_model import open_model
from gpu.config import ModelConfig
from tests.gpu.models import random_models
from tests.gpu.models.random_models import ONE_OF_EACH, ONE_OF_EACH_MOE


@pytest.mark.parametrize("name", [*ONE_OF_EACH, *ONE_OF_EACH_MOE])
def test_the_shapes_are_those_that_transformers_saves(name: str) -> None:
    config, checkpoint = open_model(random_models.folder(name))
    computed = config_shapes(config)
    saved = {tensor: checkpoint.shape(tensor) for tensor in checkpoint.names()}
    is_of_experts = {tensor for tensor in saved if ".experts." in tensor}
    outside = {tensor: saved[tensor] for tensor in saved if tensor not in is_of_experts}
    renamed = {tensor.replace("block_sparse_moe.gate", "mlp.gate"): s for tensor, s in outside.items()}
    assert {t: s for t, s in computed.items() if not t.endswith(STACKED)} == renamed
    of_experts = sum(math.prod(s) for t, s in computed.items() if t.endswith(STACKED))
    assert of_experts == sum(math.prod(saved[tensor]) for tensor in is_of_experts)
