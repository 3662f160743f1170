"""Random models in which one expert of each layer is never chosen, whatever the text."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file, save_file

from gpu.config import ModelConfig
from tests.gpu.models import random_models

WEIGHTS = "model.safetensors"
FAR_BELOW = -1e5
"""Router weight of the dead expert for the first number of a normed state: its exp is 0 relative to
the others'."""


def planted(name: str, folder: Path) -> dict[int, int]:
    """Write the model of a case of `random_models` into `folder` with dead experts; return the
    number of the dead one of each layer that has experts.

    The first number of the residual stream is the same positive number for all tokens and nothing
    adds to it. Routers use only that number for the dead expert, and for no other.
    """
    shutil.copytree(random_models.folder(name), folder, dirs_exist_ok=True)
    config = ModelConfig.from_folder(folder)
    assert config.experts is not None
    tensors: dict[str, Any] = load_file(folder / WEIGHTS)
    dead = {layer: (5 * layer + 1) % config.experts.n_experts for layer in config.expert_layers}
    for key, data in tensors.items():
        if "embed_tokens" in key:
            data[:, 0] = 2.0
        elif key.endswith(("o_proj.weight", "down_proj.weight", "w2.weight")):
            data[0] = 0.0
        elif key.endswith(".gate.weight"):
            data[:, 0] = 0.0
            data[dead[int(key.split(".")[2])]] = 0.0
            data[dead[int(key.split(".")[2])], 0] = FAR_BELOW
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})
    return dead
