"""Dry run of loading, without a device: every tensor that the model reads is read and checked, and
nothing is packed or kept."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from gpu.checkpoint.open_model import open_model
from gpu.checkpoint.packing import FORMATS
from gpu.checkpoint.reader import Progress, weight_progress
from gpu.checkpoint.weights import WeightLoader
from gpu.errors import ModelError
from gpu.models.registry import MODELS
from gpu.webgpu.buffers import Memory, Purpose, Tensor

CONTEXT = 2


def expect_loadable(
    path: str | Path, dtype: str, progress: Progress = lambda fraction, message: None
) -> None:
    """Raise ModelError if the weights do not match their config in names or shapes, or hold numbers
    that are not finite or that `dtype` cannot hold. Takes about as long as reading them."""
    if dtype not in FORMATS:
        raise ModelError(f"dtype {dtype!r} is not supported; supported: {', '.join(FORMATS)}")
    config, checkpoint = open_model(path)
    memory = _NoMemory()
    on_weights = weight_progress(progress, checkpoint, config.tie_embeddings, "checking")
    MODELS[config.model_type](
        config, _Reader(checkpoint, memory, dtype, on_weights), memory, CONTEXT
    )


GREATEST = {"q8": 127 * 65504.0, "q4": 65504.0}
"""Largest number that a quantised type can hold: its scales are float16."""


class _Reader(WeightLoader):
    """Weight loader that checks numbers instead of packing them."""

    packs_on_device = False

    def pack(
        self, dtype: str, rows: npt.NDArray[Any], name: str, out: npt.NDArray[np.uint32]
    ) -> None:
        largest = np.abs(rows).max(initial=0)
        if largest > GREATEST[dtype]:
            raise ModelError(
                f"{name} cannot be stored as {dtype}: it holds {largest:g}, but at most "
                f"{GREATEST[dtype]:g} fits; use dtype f32"
            )


class _NoMemory(Memory):
    """Memory that allocates and keeps nothing."""

    def __init__(self) -> None:
        policy = SimpleNamespace(interleaves_weights=False, weights_in_textures=False)
        self.device: Any = SimpleNamespace(max_binding_bytes=1 << 62, policy=policy)
        self.n_bytes: Counter[Purpose] = Counter()

    def zeros(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: str = "f32",
        *,
        purpose: Purpose = "work",
        uniform: bool = False,
    ) -> Tensor:
        return Tensor(name, None, shape, dtype, 0)

    def write(self, tensor: Tensor, array: npt.NDArray[Any], at: int = 0) -> None: ...
