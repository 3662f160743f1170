"""Random weights in the shapes of well-known models, made in memory: benchmarks need no files."""

from __future__ import annotations

import math

import numpy as np

from gpu.checkpoint.config_shapes import config_shapes
from gpu.checkpoint.reader import F16, F32
from gpu.config import ModelConfig, RopeConfig

POOL = (1 << 20) - 3
"""Random numbers that are drawn once and repeated: drawing eight billion would take longer than the
benchmark. Odd, so that no two rows of a matrix are equal: equal rows of the output head give equal
logits, which a sampler treats apart."""


def _llama(
    layers: int, hidden: int, heads: int, kv_heads: int, inner: int, vocab: int, tied: bool
) -> ModelConfig:
    return ModelConfig(
        model_type="llama",
        n_layers=layers,
        n_heads=heads,
        n_kv_heads=kv_heads,
        head_dim=hidden // heads,
        hidden_size=hidden,
        intermediate_size=inner,
        vocab_size=vocab,
        context=16384,
        norm_eps=1e-5,
        tie_embeddings=tied,
        attention_bias=False,
        mlp_bias=False,
        rope=RopeConfig(),
        eos_ids=(),
        bos_id=None,
        torch_dtype="float32",
    )


LLAMA_SHAPES = {
    "tiny": _llama(6, 256, 8, 4, 768, 4096, True),
    "smol135": _llama(30, 576, 9, 3, 1536, 49152, True),
    "llama1b": _llama(16, 2048, 32, 8, 8192, 128256, True),
    "llama8b": _llama(32, 4096, 32, 8, 14336, 128256, False),
}
"""smol135 is SmolLM2-135M, llama1b Llama 3.2 1B, llama8b Llama 3.1 8B."""


class RandomCheckpoint:
    """A `gpu.checkpoint.reader.WeightSource` with every tensor of a Llama of this shape.

    Weights are normally distributed with deviation 1/sqrt(columns); norm gains are 1. Every call
    gives the same numbers.
    """

    def __init__(self, config: ModelConfig) -> None:
        self._shapes = config_shapes(config)
        self._names = {name: i for i, name in enumerate(self._shapes)}
        pool = np.random.default_rng(0).standard_normal(POOL)
        self._pool = pool.astype(np.float32)

    def names(self) -> tuple[str, ...]:
        return tuple(self._shapes)

    def __contains__(self, name: object) -> bool:
        return name in self._shapes

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def parameters(self, tie_embeddings: bool = False) -> int:
        return sum(math.prod(shape) for shape in self._shapes.values())

    def read_f32(self, name: str, rows: slice | None = None, columns: slice | None = None) -> F32:
        shape = self._shapes[name]
        if len(shape) == 1:
            return np.ones(shape[0] if rows is None else len(range(*rows.indices(shape[0]))), "f4")
        start, stop, _ = (rows or slice(None)).indices(shape[0])
        first = start * shape[1] + self._names[name] * 7919
        flat = self._cut(first, (stop - start) * shape[1])
        values = flat.reshape(-1, shape[1]) * np.float32(shape[1] ** -0.5)
        return values if columns is None else values[:, columns]

    def read_f16(self, name: str, rows: slice | None = None, columns: slice | None = None) -> F16:
        return self.read_f32(name, rows, columns).astype(np.float16)

    def read_into(
        self, out: F32 | F16, name: str, rows: slice | None = None, columns: slice | None = None
    ) -> None:
        out[...] = self.read_f32(name, rows, columns)

    def _cut(self, first: int, n: int) -> F32:
        """Return `n` numbers of the repeated pool from `first` on."""
        start = first % POOL
        copies = -(-(start + n) // POOL)
        return np.tile(self._pool, copies)[start : start + n]
