"""What an adapter changes is measured on the product of its matrices."""

from __future__ import annotations

import numpy as np
import pytest

from gpu import lora_changes
from gpu.checkpoint.reader import Checkpoint
from gpu.config import ModelConfig
from gpu.lora.adapter import Lora
from tests.gpu.lora import random_loras


@pytest.mark.parametrize("name", [random_loras.LLAMA, "gpt2", "qwen2_moe"])
def test_norm_and_singular_values_are_those_of_the_whole_product(name: str) -> None:
    model = random_loras.base(name)
    folder = random_loras.folder(name, "all")
    lora = Lora.open("tone", folder, ModelConfig.from_folder(model), Checkpoint.open(model))
    found = lora_changes("tone", folder, model)
    assert {change.module for change in found} == set(lora.modules)
    for change in found:
        whole = lora.b(change.module).astype(float) @ lora.a(change.module).astype(float)
        values = np.linalg.svd(whole, compute_uv=False)
        rank = lora.rank(change.module)
        assert len(change.singular_values) == min(rank, *whole.shape)
        np.testing.assert_allclose(change.singular_values, values[:rank], rtol=1e-9, atol=1e-12)
        assert change.norm == pytest.approx(np.linalg.norm(whole), rel=1e-9)
        assert change.module.endswith(f".{change.layer}.{change.name}")
