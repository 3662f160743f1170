"""What a model will take on the device, from its shapes alone: known before a weight is read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpu.checkpoint.packing import FORMATS, row_words
from gpu.checkpoint.reader import Checkpoint
from gpu.config import ModelConfig
from gpu.errors import ModelError
from gpu.kv.blocks import block_bytes, fit

Shapes = Mapping[str, tuple[int, ...]]
"""Of every tensor, by name."""

OVERHEAD = 0.1
"""Of weights and cache together: activations, tables, and what allocators round up."""
VOCABULARY = ("embed_tokens.weight", "lm_head.weight")


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of the weights, and of the KV cache for `context` tokens of a text."""

    weights: int
    kv_cache: int
    context: int

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
        context: int | None = None,
        kv_bytes: int | None = None,
    ) -> Footprint:
        """Of the model at `path`. `shapes`: where its weights are not there yet; the rest as for
        `Engine.load`. Raises ModelError for a model that cannot be run and DeviceError for a
        context that its KV cache cannot hold."""
        if dtype not in FORMATS:
            raise ModelError(f"dtype {dtype!r} is not supported; supported: {', '.join(FORMATS)}")
        config, kv = ModelConfig.from_folder(path), FORMATS[dtype].kv
        cut = fit(config, kv, n_slots, context=context, budget_bytes=kv_bytes)
        found = shapes_of(path) if shapes is None else shapes
        weights = sum(
            _stored_bytes(name, shape, dtype)
            for name, shape in found.items()
            if not (config.tie_embeddings and name == VOCABULARY[1])
        )
        return cls(weights, cut.n_blocks * block_bytes(config, kv), cut.context)


def shapes_of(path: str | Path) -> Shapes:
    """Of the tensors at `path`, from the headers of its files."""
    checkpoint = Checkpoint.open(path)
    return {name: checkpoint.shape(name) for name in checkpoint.names()}


def _stored_bytes(name: str, shape: tuple[int, ...], dtype: str) -> int:
    """As `gpu.checkpoint.weights` stores it: matrices packed row by row, vectors as float32."""
    if len(shape) < 2:
        return 4 * math.prod(shape)
    if name.endswith(VOCABULARY):
        dtype = FORMATS[dtype].vocabulary
    return 4 * row_words(dtype, shape[-1]) * math.prod(shape[:-1])
