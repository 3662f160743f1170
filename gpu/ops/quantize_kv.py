"""What a quantised KV cache needs beside the products and attention: keys and values wait in rows
of their own until a whole head of them is there, then they are packed; what is turned in the cache
is turned back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpu.config import ModelConfig
from gpu.kv.formats import rotation_span
from gpu.kv.pools import KvPools
from gpu.ops.batch import Batch, paging
from gpu.ops.packed import packing_prelude
from gpu.runner import DeviceInfo
from gpu.webgpu.buffers import Tensor, padded
from gpu.webgpu.kernels import Number
from gpu.webgpu.plan import Recorder

STORAGE_CODES = {"q8": 0, "q4": 1, "n4": 2}
"""As shaders/cache_heads.wgsl numbers them."""
WAITING = {"BLOCK_TOKENS": 1}
"""Rows that wait are a cache of their own: row r is the one token of its block r
(`gpu.ops.step_buffer.pack_step` names blocks so)."""


@dataclass(frozen=True, slots=True)
class Destination:
    """Where `qkv` and `place_heads` leave keys and values: in the cache of a layer, or in rows that
    wait for `cache_heads`."""

    keys: Tensor
    values: Tensor
    paging: dict[str, Number]
    pair: str

    @classmethod
    def of(cls, batch: Batch, config: ModelConfig, pools: KvPools, layer: int) -> Destination:
        found, waiting = paging(config, pools), batch.new_heads
        if not pools.format.packed:
            return cls(pools.keys[layer], pools.values[layer], found, f"kv_pair_{pools.dtype}")
        if waiting is None:
            raise ValueError(f"a batch over a {pools.dtype} cache needs room for its new heads")
        return cls(waiting.keys, waiting.values, {**found, **WAITING}, "kv_pair_f32")


def cache_heads(
    rec: Recorder,
    batch: Batch,
    label: str,
    config: ModelConfig,
    pools: KvPools,
    layer: int,
    q: Tensor,
) -> None:
    """Quantise the new keys and values of `batch` into the cache of `layer`; a rotated cache turns
    them before, and q (n_rows, padded query width) in place. Nothing to do for other caches."""
    if not pools.format.packed:
        return
    new = batch.new_heads
    assert new is not None, "`Destination.of` has said so"
    rotated, d = pools.format.rotated, config.head_dim
    rec.dispatch(
        label,
        "cache_heads",
        {
            "step": batch.step,
            "block_tables": pools.tables,
            "new_keys": new.keys,
            "new_values": new.values,
            "q": q,
            "k_pool": pools.keys[layer],
            "v_pool": pools.values[layer],
        },
        ((config.n_heads if rotated else 0) + 2 * config.n_kv_heads, batch.n_rows, 1),
        {
            "N_HEADS": config.n_heads,
            "Q_STRIDE": q.shape[-1],
            "KEYS": STORAGE_CODES[pools.format.keys.name],
            "VALUES": STORAGE_CODES[pools.format.values.name],
            "ROTATED": rotated,
            "LANES": _lanes(rec.device.info, d),
            **_span(d),
            **paging(config, pools),
        },
        packing_prelude(pools.format, d),
    )


def unrotate_heads(rec: Recorder, batch: Batch, label: str, config: ModelConfig, x: Tensor) -> None:
    """Turn the heads of x (n_rows, padded query width) back, in place: what attention over a
    rotated cache gives becomes what it would be over the same values as they were."""
    if x.shape[-1] != padded(config.n_heads * config.head_dim):
        raise ValueError(f"{label}: {x!r} is not {config.n_heads} heads of {config.head_dim}")
    d = config.head_dim
    rec.dispatch(
        label,
        "unrotate_heads",
        {"step": batch.step, "x": x},
        (config.n_heads, batch.n_rows, 1),
        {
            "HEAD_DIM": d,
            "STRIDE": x.shape[-1],
            "LANES": _lanes(rec.device.info, d),
            **_span(d),
        },
    )


def _span(head_dim: int) -> dict[str, Number]:
    """The constants of shaders/lib/hadamard.wgsl."""
    span = rotation_span(head_dim)
    return {"SPAN": span, "ONE_OF_SPAN": float(np.float32(span**-0.5))}


def _lanes(info: DeviceInfo, head_dim: int) -> int:
    return min(8 if info.software else 64, head_dim)
