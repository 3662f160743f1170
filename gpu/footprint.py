"""What a model will take on the device, from its shapes alone: known before a weight is read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpu.checkpoint.files import Tensor
from gpu.checkpoint.inventory import Inventory
from gpu.checkpoint.packing import FORMATS
from gpu.checkpoint.reader import Checkpoint
from gpu.config import ModelConfig
from gpu.errors import ModelError
from gpu.kv.blocks import block_bytes, fit

Shapes = Mapping[str, tuple[int, ...]]
"""Of every tensor, by name."""

OVERHEAD = 0.1
"""Of weights and cache together: activations, tables, and what allocators round up."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of the weights, and of the KV cache, stored as `kv_dtype`, for `context` tokens of a
    text."""

    weights: int
    kv_cache: int
    context: int
    kv_dtype: str

    @property
    def total(self) -> int:
        """With what work needs beside them."""
        return math.ceil((self.weights + self.kv_cache) * (1 + OVERHEAD))

    @classmethod
    def of(
        cls,
        path: str | Path,
        dtype: str,
        *,
        shapes: Shapes | None = None,
        n_slots: int = 4,
        kv_dtype: str | None = None,
        context: int | None = None,
        kv_bytes: int | None = None,
    ) -> Footprint:
        """Of the model at `path`. `shapes`: where its weights are not there yet; the rest as for
        `Engine.load`. Raises ModelError for a model that cannot be run and DeviceError for a
        context that its KV cache cannot hold."""
        if dtype not in FORMATS:
            raise ModelError(f"dtype {dtype!r} is not supported; supported: {', '.join(FORMATS)}")
        config, kv = ModelConfig.from_folder(path), kv_dtype or FORMATS[dtype].kv
        cut = fit(config, kv, n_slots, context=context, budget_bytes=kv_bytes)
        checkpoint = Checkpoint.open(path) if shapes is None else _of_shapes(Path(path), shapes)
        weights = Inventory.of(config, checkpoint, dtype).device_bytes
        assert weights is not None
        return cls(weights, cut.n_blocks * block_bytes(config, kv), cut.context, kv)


def _of_shapes(path: Path, shapes: Shapes) -> Checkpoint:
    """A checkpoint that can be counted and not read."""
    nothing = np.empty(0, np.uint8)
    return Checkpoint(
        path, {name: Tensor(name, path, "F32", shape, nothing) for name, shape in shapes.items()}
    )
