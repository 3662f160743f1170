"""Checks of what computes queries, keys and values and writes them to the cache: qkv, and QK norm
with RoPE."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from gpu import ops
from gpu.checkpoint.matrix import Matrix
from gpu.checkpoint.packing import FORMATS, pack, row_words, unpack
from gpu.checks.kv_cache import (
    LAYER,
    Heads,
    LayerCache,
    RowPlaces,
    compare_written,
    heads_config,
)
from gpu.checks.rig import ROUNDING, Array, Rig, check_each, f64, normal
from gpu.config import ModelConfig
from gpu.models.rope_tables import rope_cos_sin
from gpu.reference import ops as reference
from gpu.webgpu.buffers import Tensor

CONTEXT = 100
N_SLOTS = 3
EPS = 1e-5
SOMEWHERE = RowPlaces.of((0, 0), (1, 15), (2, 16), (0, 1), (1, 17), (2, 47), (0, 99), (1, 48))
"""Positions around the borders of blocks."""


# ---- qkv -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QkvCase:
    """`kv_dtype`: format of the cache; `width`: inputs; `bucket`: rows of the plan, 0 for as many;
    `shards`: least pieces the weight is cut into."""

    heads: Heads
    at: RowPlaces = SOMEWHERE
    kv_dtype: str = "f32"
    dtype: str = "f32"
    rotary_dim: int | None = None
    width: int = 40
    bias: bool = True
    norm: bool = True
    bucket: int = 0
    shards: int = 1
    seed: int = 0

    def __str__(self) -> str:
        n_heads, n_kv_heads, head_dim = self.heads
        heads = f"{n_heads}/{n_kv_heads}x{head_dim}:{self.rotary_dim}"
        return f"{self.dtype}-{self.kv_dtype}-{heads}-{len(self.at.slots)}rows"

    @property
    def all_heads(self) -> int:
        return self.heads[0] + 2 * self.heads[1]

    @property
    def config(self) -> ModelConfig:
        return heads_config(self.heads, hidden_size=self.width, rotary_dim=self.rotary_dim)


class QkvNumbers:
    """Random float32 numbers of a case: x (n_rows, width), weight (outputs, width), biases
    (outputs,), gain (width,); `stored` is the weight as its format keeps it."""

    def __init__(self, case: QkvCase) -> None:
        rng = np.random.default_rng(case.seed)
        n, width = case.all_heads * case.heads[2], case.width
        self.x = normal(rng, len(case.at.slots), width)
        self.weight = normal(rng, n, width) / np.float32(np.sqrt(width))
        self.biases = normal(rng, n)
        self.gain = rng.uniform(0.5, 1.5, width).astype(np.float32)
        self.cos_sin = rope_cos_sin(case.config, CONTEXT)
        self._dtype = case.dtype

    @cached_property
    def stored(self) -> Array:
        width = self.x.shape[1]
        return unpack(self._dtype, pack(self._dtype, self.weight), width).astype(np.float64)

    def bound(self, *results: Array) -> float:
        """Return the bound of a fused matmul (see `matmul.expected_matmul`); RoPE adds two
        results."""
        normed = reference.rms_norm(f64(self.x), f64(self.gain), EPS)
        size = np.linalg.norm(normed, axis=1).max() * np.linalg.norm(self.stored, axis=1).max()
        largest = max(np.nanmax(np.abs(result)) for result in results)
        sums = 8 * (size + np.abs(self.biases).max())
        return float(1.5 * ROUNDING * (sums + (16 + np.sqrt(self.x.shape[1])) * largest))


def check_qkv(rig: Rig, case: QkvCase) -> None:
    """Compare queries, keys and values with the twin, each within its bound."""
    given, n_rows = QkvNumbers(case), len(case.at.slots)
    cache = LayerCache.scattered(rig, case.config, case.kv_dtype, N_SLOTS, CONTEXT, case.seed)
    q = _run_qkv(rig, case, given, cache)
    filled = cache.arrays()
    x, gain, biases, cos_sin = f64(given.x, given.gain, given.biases, given.cos_sin)
    want = reference.qkv(
        x, given.stored, cos_sin, cache.rows(case.at), filled, case.heads[0],
        norm=reference.Norm(gain, EPS) if case.norm else None,
        bias=biases if case.bias else None,
    )  # fmt: skip
    bound = given.bound(want, filled.keys, filled.values)
    rig.compare("qkv.q", case, q, want.reshape(n_rows, -1), bound)
    compare_written(rig, "qkv", case, cache, filled, (bound, bound))


def _run_qkv(rig: Rig, case: QkvCase, given: QkvNumbers, cache: LayerCache) -> Array:
    """Return the device's queries (n_rows, n_heads · head_dim)."""
    n_rows, rope = len(case.at.slots), None
    batch = rig.batch(case.at.rows, bucket=case.bucket or n_rows, blocks=cache.pools.blocks[0])
    shard_rows = -(-case.all_heads // case.shards) * case.heads[2]
    limit = shard_rows * 4 * row_words(case.dtype, case.width) if case.shards > 1 else None
    matrix, bias = upload_qkv(rig, given.weight, given.biases, case.config, case.dtype, limit)
    rig.expect("the weight is cut into shards", len(matrix.shards) >= case.shards)
    if case.rotary_dim != 0:
        rope = rig.memory.upload("rope_cos_sin", given.cos_sin)
    q, x = rig.output(n_rows, case.heads[0] * case.heads[2]), rig.input("x", given.x)
    rig.run_op(
        ops.qkv, batch, "qkv", case.config, x, matrix, rope, cache.pools, LAYER, q.tensor,
        norm=ops.Norm(rig.gain(given.gain), EPS) if case.norm else None,
        bias=bias if case.bias else None,
    )  # fmt: skip
    return q.read()


def check_cross_kv(rig: Rig, case: QkvCase) -> None:
    """Compare the keys and values of cross-attention with the twin: those of a weight without query
    heads."""
    given = QkvNumbers(case)
    cache = LayerCache.scattered(rig, case.config, case.kv_dtype, N_SLOTS, CONTEXT, case.seed)
    n_rows, (keys, values) = len(case.at.slots), np.split(given.weight, 2)
    batch = rig.batch(case.at.rows, bucket=case.bucket or n_rows, blocks=cache.pools.blocks[0])
    loader = rig.loader({"k": keys, "v": values}, case.dtype)
    rig.run_op(
        ops.qkv, batch, "kv", case.config, rig.input("x", given.x),
        loader.kv("kv", "k", "v", case.config), None, cache.pools, LAYER, None,
        norm=ops.Norm(rig.gain(given.gain), EPS) if case.norm else None,
    )  # fmt: skip
    filled = cache.arrays()
    x, gain, cos_sin = f64(given.x, given.gain, given.cos_sin)
    reference.qkv(
        x, given.stored, cos_sin, cache.rows(case.at), filled, 0,
        norm=reference.Norm(gain, EPS) if case.norm else None,
    )  # fmt: skip
    bound = given.bound(filled.keys, filled.values)
    compare_written(rig, "kv", case, cache, filled, (bound, bound))


def upload_qkv(
    rig: Rig,
    weight: Array,
    biases: Array,
    config: ModelConfig,
    dtype: str,
    shard_bytes: int | None = None,
) -> tuple[Matrix, Tensor]:
    """Upload query, key and value projections as one matrix, as a model stores them."""
    at = np.cumsum([config.n_heads, config.n_kv_heads]) * config.head_dim
    arrays = dict(zip("qkv", np.split(weight, at), strict=True))
    arrays |= dict(zip(("bq", "bk", "bv"), np.split(biases, at), strict=True))
    loader = rig.loader(arrays, dtype, shard_bytes)
    return (
        loader.qkv("qkv", "q", "k", "v", config, config.rope_dim),
        loader.qkv_biases("bias", "bq", "bk", "bv", config, config.rope_dim),
    )


# ---- qk_norm_rope ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QkNormCase:
    """`kv_dtype`: format of the cache; `whole`: a norm is over all heads."""

    heads: Heads
    kv_dtype: str = "f32"
    whole: bool = False
    rotary_dim: int | None = None


def check_qk_norm_rope(rig: Rig, case: QkNormCase) -> None:
    """Compare normalised and rotated queries and keys, and values, with the twin."""
    n_heads, n_kv_heads, d = case.heads
    config = heads_config(case.heads, norm_eps=EPS, rotary_dim=case.rotary_dim)
    rng, n_rows = np.random.default_rng(d), len(SOMEWHERE.slots)
    projected = normal(rng, n_rows, (n_heads + 2 * n_kv_heads) * d)
    n_gains = (n_heads + n_kv_heads) * d if case.whole else 2 * d
    gains = rng.uniform(0.5, 1.5, n_gains).astype(np.float32)
    cos_sin = rope_cos_sin(config, CONTEXT)
    cache = LayerCache.scattered(rig, config, case.kv_dtype, N_SLOTS, CONTEXT, seed=d)
    batch = rig.batch(SOMEWHERE.rows, bucket=16, blocks=cache.pools.blocks[0])
    q, given = rig.output(n_rows, n_heads * d), rig.input("projected", projected)
    rig.run_op(
        ops.qk_norm_rope, batch, "qk_norm_rope", config, given, rig.memory.upload("gains", gains),
        rig.memory.upload("rope_cos_sin", cos_sin) if case.rotary_dim != 0 else None,
        cache.pools, LAYER, q.tensor, whole=case.whole,
    )  # fmt: skip
    filled = cache.arrays()
    projected_, gains_, cos_sin_ = f64(projected, gains, cos_sin)
    want = reference.qk_norm_rope(
        projected_, gains_, cos_sin_, cache.rows(SOMEWHERE), filled, n_heads, eps=EPS,
        whole=case.whole,
    )  # fmt: skip
    bound = ROUNDING * (24 + np.sqrt(n_heads * d)) * np.abs(want).max()
    rig.compare("qk_norm_rope.q", case, q.read(), want.reshape(n_rows, -1), bound)
    compare_written(rig, "qk_norm_rope", case, cache, filled, (bound, 0.0))  # values are copied


# ---- of a report -----------------------------------------------------------------------------

QKVS = (
    QkvCase((9, 3, 64), kv_dtype="f16", width=100, bucket=8),
    QkvCase((5, 1, 12), kv_dtype="f32", width=40, bucket=8),
)

CROSS_KVS = (
    QkvCase((0, 3, 20), rotary_dim=0, norm=False, bucket=8),
    QkvCase((0, 2, 64), rotary_dim=0, kv_dtype="f16", width=100),
)

CHECKS: dict[str, Callable[[Rig], None]] = {
    **{
        f"qkv {dtype}": check_each(check_qkv, *(replace(case, dtype=dtype) for case in QKVS))
        for dtype in FORMATS
    },
    "qkv cross": check_each(check_cross_kv, *CROSS_KVS),
    "qk_norm_rope": check_each(
        check_qk_norm_rope,
        QkNormCase((5, 1, 12)),
        QkNormCase((4, 2, 100), "f16", whole=True),
        QkNormCase((4, 2, 12), rotary_dim=8),
    ),
}
