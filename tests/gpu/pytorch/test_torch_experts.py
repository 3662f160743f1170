"""Mixtures of experts in PyTorch in both layouts; `test_models` compares them with transformers."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from gpu.load_options import LoadOptions
from gpu.pytorch.runner import TorchRunner
from gpu.step import Floats
from tests.gpu.engine import driving
from tests.gpu.models import random_models

WEIGHTS = "model.safetensors"


def stacked(whole: dict[str, Floats]) -> dict[str, Floats]:
    """Stack the experts of each layer into two tensors, gate above up and down, as transformers
    holds them in memory."""
    found = {name: data for name, data in whole.items() if ".experts." not in name}
    modules = {name.partition(".experts.")[0] for name in whole if ".experts." in name}
    for module in modules:
        n = 1 + max(int(k) for k in re.findall(rf"{module}\.experts\.(\d+)\.", "\n".join(whole)))
        is_mixtral = module.endswith("block_sparse_moe")
        parts = ("w1", "w3", "w2") if is_mixtral else ("gate_proj", "up_proj", "down_proj")
        gate, up, down = (
            np.stack([whole[f"{module}.experts.{i}.{part}.weight"] for i in range(n)])
            for part in parts
        )
        there = module.replace("block_sparse_moe", "mlp")
        found[f"{there}.experts.gate_up_proj"] = np.concatenate([gate, up], axis=1)
        found[f"{there}.experts.down_proj"] = down
        found[f"{there}.gate.weight"] = found.pop(f"{module}.gate.weight")
    return found


@pytest.mark.parametrize(("name", "dtype"), [("mixtral", "q8"), ("qwen3_moe", "f32")])
def test_experts_saved_as_one_tensor_are_the_same(name: str, dtype: str, tmp_path: Path) -> None:
    folder, ids = random_models.folder(name), random_models.ids(20)
    for path in folder.iterdir():
        shutil.copyfile(path, tmp_path / path.name)
    (tmp_path / WEIGHTS).unlink()
    save_file(stacked(load_file(folder / WEIGHTS)), tmp_path / WEIGHTS)
    found = []
    for place in (folder, tmp_path):
        runner = TorchRunner.load(place, LoadOptions(dtype=dtype, slots=1))
        found.append(driving.all_logits(runner, ids))
        runner.close()
    assert np.array_equal(*found)
