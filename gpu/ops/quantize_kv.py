"""Quantised KV caches: new keys and values are staged as float32, then quantised a head at a time.
A rotated cache needs the inverse Hadamard rotation after attention."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpu.config import ModelConfig
from gpu.kv.formats import hadamard_size, pack_block
from gpu.kv.pools import KvPools
from gpu.ops.batch import Batch, paging
from gpu.ops.cost import Cost, StepSize, cached_head_bytes, constants_of, cost_of_kernel
from gpu.ops.packed import packing_prelude
from gpu.step import KvVariant
from gpu.webgpu.buffers import Tensor, padded
from gpu.webgpu.device_policy import DevicePolicy
from gpu.webgpu.kernels import Number
from gpu.webgpu.plan import Dispatch, Recorder

STORAGE_CODES = {"q8": 0, "q4": 1, "nl4": 2}
"""Codes in shaders/quantize_kv.wgsl."""
ROUNDED_CODES = {"q8": 0, "q4": 1, None: 3}
"""Codes in shaders/round_kv.wgsl. nl4 is for transformed numbers."""
STAGING_PAGING = {"BLOCK_TOKENS": 1}
"""Staged rows are addressed as a cache with blocks of one token: row r is block r
(`gpu.ops.step_buffer.pack_step` without tables)."""


@dataclass(frozen=True, slots=True)
class KvTarget:
    """Destination of new keys and values in `qkv` and `qk_norm_rope`: the cache of a layer, or the
    staging rows of `quantize_kv`."""

    keys: Tensor
    values: Tensor
    paging: dict[str, Number]
    pair: str

    @classmethod
    def of(cls, batch: Batch, config: ModelConfig, pools: KvPools, layer: int) -> KvTarget:
        found, staging = paging(config, pools), batch.kv_staging
        if not pools.format.packed:
            return cls(pools.keys[layer], pools.values[layer], found, f"kv_pair_{pools.dtype}")
        if staging is None:
            raise ValueError(f"a batch over a {pools.dtype} cache needs `kv_staging`")
        return cls(staging.keys, staging.values, {**found, **STAGING_PAGING}, "kv_pair_f32")


def quantize_kv(
    rec: Recorder,
    batch: Batch,
    label: str,
    config: ModelConfig,
    pools: KvPools,
    layer: int,
    q: Tensor,
) -> None:
    """Quantise the staged keys and values of `batch` into the cache of `layer`.

    A rotated cache rotates them before, and q (n_rows, padded query width) in place. Records
    nothing for caches that are not quantised.
    """
    if not pools.format.packed:
        return
    new = batch.kv_staging
    assert new is not None, "checked by `KvTarget.of`"
    hadamard, d = pools.format.hadamard, config.head_dim
    rec.dispatch(
        label,
        "quantize_kv",
        {
            "step": batch.step,
            "block_tables": pools.tables_of(layer),
            "new_keys": new.keys,
            "new_values": new.values,
            "q": q,
            "k_pool": pools.keys[layer],
            "v_pool": pools.values[layer],
        },
        ((config.n_heads if hadamard else 0) + 2 * config.n_kv_heads, batch.n_rows, 1),
        {
            "N_HEADS": config.n_heads,
            "Q_STRIDE": q.shape[-1],
            "K_STORAGE": STORAGE_CODES[pools.format.keys.name],
            "V_STORAGE": STORAGE_CODES[pools.format.values.name],
            "HADAMARD": hadamard,
            "LANES": lanes_of_head(rec.device.policy, d),
            **hadamard_constants(d),
            **paging(config, pools),
        },
        packing_prelude(pools.format, d),
    )


@cost_of_kernel("quantize_kv")
def quantize_kv_cost(dispatch: Dispatch, size: StepSize) -> Cost:
    """Operations: 0, or log₂(Hadamard size) + 2 per rotated number. Bytes: new keys and values, and
    as stored; q read and written if rotated."""
    c, d = constants_of(dispatch), dispatch.tensors["k_pool"].shape[-1]
    row = c["N_KV_HEADS"] * (2 * 4 * d + cached_head_bytes(dispatch))
    if not c["HADAMARD"]:
        return Cost(0, size.n_rows * row)
    n_rotated = (c["N_HEADS"] + 2 * c["N_KV_HEADS"]) * d
    row += 2 * 4 * c["N_HEADS"] * d
    return Cost(size.n_rows * n_rotated * _hadamard_flops(d), size.n_rows * row)


def round_kv(
    rec: Recorder,
    batch: Batch,
    label: str,
    config: ModelConfig,
    pools: KvPools,
    layer: int,
    kv: KvVariant,
) -> None:
    """Round the keys and values of `batch` in the cache of `layer`, which holds floats, to the
    storages of `kv` and back, in place."""
    if pools.format.packed:
        raise ValueError(f"{label}: keys and values of a {pools.dtype} cache are rounded already")
    block = pack_block(config.head_dim)
    rec.dispatch(
        label,
        "round_kv",
        {
            "step": batch.step,
            "block_tables": pools.tables_of(layer),
            "k_pool": pools.keys[layer],
            "v_pool": pools.values[layer],
        },
        (2 * config.n_kv_heads, batch.n_rows, 1),
        {
            "K_STORAGE": ROUNDED_CODES[kv.keys],
            "V_STORAGE": ROUNDED_CODES[kv.values],
            "LANES": lanes_of_head(rec.device.policy, config.head_dim),
            **paging(config, pools),
        },
        {"const HEAD_DIM": f"{config.head_dim}u", "const PACK_BLOCK": f"{block}u"},
        {"kv_pair": f"kv_pair_{pools.dtype}"},
    )


@cost_of_kernel("round_kv")
def round_kv_cost(dispatch: Dispatch, size: StepSize) -> Cost:
    """Operations: 0. Bytes: the rounded keys and values read and written."""
    c = constants_of(dispatch)
    n_rounded = sum(c[name] != ROUNDED_CODES[None] for name in ("K_STORAGE", "V_STORAGE"))
    return Cost(0, size.n_rows * n_rounded * cached_head_bytes(dispatch) * c["N_KV_HEADS"])


def inverse_hadamard(
    rec: Recorder, batch: Batch, label: str, config: ModelConfig, x: Tensor
) -> None:
    """Apply the inverse rotation to the heads of x (n_rows, padded query width), in place: the
    output of attention over rotated values becomes that over the values themselves."""
    if x.shape[-1] != padded(config.n_heads * config.head_dim):
        raise ValueError(
            f"{label}: {x!r} was given, expected {config.n_heads} heads of {config.head_dim}"
        )
    d = config.head_dim
    rec.dispatch(
        label,
        "inverse_hadamard",
        {"step": batch.step, "x": x},
        (config.n_heads, batch.n_rows, 1),
        {
            "HEAD_DIM": d,
            "STRIDE": x.shape[-1],
            "LANES": lanes_of_head(rec.device.policy, d),
            **hadamard_constants(d),
        },
    )


@cost_of_kernel("inverse_hadamard")
def inverse_hadamard_cost(dispatch: Dispatch, size: StepSize) -> Cost:
    """Operations: log₂(Hadamard size) + 2 per number. Bytes: x read and written."""
    n_heads, d = dispatch.grid[0], constants_of(dispatch)["HEAD_DIM"]
    numbers = size.n_rows * n_heads * d
    return Cost(numbers * _hadamard_flops(d), 2 * 4 * numbers)


def _hadamard_flops(head_dim: int) -> int:
    """Per number: its sign, one addition per level of the transform, the scale."""
    return hadamard_size(head_dim).bit_length() + 1


def hadamard_constants(head_dim: int) -> dict[str, Number]:
    """Return the constants of shaders/lib/hadamard.wgsl."""
    size = hadamard_size(head_dim)
    return {"HADAMARD_SIZE": size, "HADAMARD_SCALE": float(np.float32(size**-0.5))}


def lanes_of_head(policy: DevicePolicy, head_dim: int) -> int:
    """Return the lanes of a workgroup that works on one head."""
    return min(policy.row_lanes, head_dim)
