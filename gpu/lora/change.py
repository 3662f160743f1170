"""Norm and singular values of ΔW = (α / r) · B A, the change that an adapter makes to each module.

ΔW has rank r at most, so its singular values are those of a small matrix: with A ᵀ = Q_a R_a and
B = Q_b R_b (reduced QR), ΔW = Q_b (R_b R_aᵀ) Q_aᵀ, and R_b R_aᵀ is (r, r).
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from gpu.checkpoint.reader import F32, Checkpoint
from gpu.config import ModelConfig
from gpu.lora.adapter import Lora
from gpu.lora.targets import lora_targets


class LoraChange(msgspec.Struct, frozen=True):
    """Change of one matrix at strength 1.

    module           its name in the base
    name             its name in the layer, such as mlp.up_proj
    norm             Frobenius norm of ΔW
    singular_values  of ΔW, in falling order: as many as the rank
    """

    module: str
    name: str
    layer: int
    norm: float
    singular_values: tuple[float, ...]


def lora_changes(name: str, folder: str | Path, model: str | Path) -> tuple[LoraChange, ...]:
    """Return the changes of an adapter in the order of the model's steps. Raises ModelError."""
    path = Path(model)
    config, base = ModelConfig.from_folder(path), Checkpoint.open(path)
    lora = Lora.open(name, Path(folder), config, base)
    return tuple(
        _change(target.module, target.layer, lora.a(target.module), lora.b(target.module))
        for target in lora_targets(config, base)
        if lora.rank(target.module)
    )


def _change(module: str, layer: int, a: F32, b: F32) -> LoraChange:
    """Return the change of a matrix. `a` (r, n_in); `b` (n_out, r), times α / r."""
    _, r_a = np.linalg.qr(a.T.astype(np.float64))
    _, r_b = np.linalg.qr(b.astype(np.float64))
    values = np.linalg.svd(r_b @ r_a.T, compute_uv=False)
    norm = float(np.sqrt(np.square(values).sum()))
    name = module.partition(f".{layer}.")[2]
    return LoraChange(module, name, layer, norm, tuple(values.tolist()))
