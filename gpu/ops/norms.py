"""Norms with dispatches of their own (LayerNorm, QK norm, RMSNorm that no matmul follows), and
learned position embeddings."""

from __future__ import annotations

from dataclasses import dataclass

from gpu.config import ModelConfig
from gpu.kv.pools import KvPools
from gpu.ops.batch import Batch, expect_shape, n_workgroups
from gpu.ops.cost import (
    NORM_FLOPS,
    ROPE_FLOPS,
    Cost,
    StepSize,
    cached_head_bytes,
    constants_of,
    cost_of_kernel,
)
from gpu.ops.quantize_kv import KvTarget, quantize_kv
from gpu.webgpu.buffers import Tensor, padded
from gpu.webgpu.plan import Dispatch, Recorder

LAYER_NORM_FLOPS = 7
"""Per number: two differences, two sums, a square, the gain, the scale."""


@dataclass(frozen=True, slots=True)
class Norm:
    """RMSNorm, or LayerNorm when `centred`. gain (width,), LayerNorm's bias (width,)."""

    gain: Tensor
    eps: float
    centred: bool = False
    bias: Tensor | None = None

    @property
    def is_rms(self) -> bool:
        return not self.centred and self.bias is None


def norm(
    rec: Recorder,
    batch: Batch,
    label: str,
    of: Norm,
    width: int,
    x: Tensor,
    y: Tensor,
    *,
    residual: Tensor | None = None,
    gather: bool = False,
) -> None:
    """y = [residual +] norm(x), rows of `width` numbers. `gather`: y has one row per sample, from
    the sample's row of x."""
    for tensor in (x, y, *((residual,) if residual else ())):
        expect_shape(tensor, (padded(width),), label)
    rec.dispatch(
        label,
        "norm",
        {
            "step": batch.step,
            "x": x,
            "gain": of.gain,
            "bias": of.bias,
            "residual": residual,
            "y": y,
        },
        (batch.n_samples if gather else batch.n_rows, 1, 1),
        {
            "WIDTH": width,
            "STRIDE": padded(width),
            "EPS": of.eps,
            "LANES": rec.device.policy.row_lanes,
            "CENTRED": of.centred,
            "BIAS": of.bias is not None,
            "RESIDUAL": residual is not None,
            "GATHER": gather,
        },
    )


@cost_of_kernel("norm")
def norm_cost(dispatch: Dispatch, size: StepSize) -> Cost:
    """Operations: 4rN, LayerNorm 7rN, + rN each for a bias and a residual. Bytes: x, y, gain, bias,
    residual."""
    c = constants_of(dispatch)
    n_rows, width = size.n_samples if c["GATHER"] else size.n_rows, c["WIDTH"]
    flops = (LAYER_NORM_FLOPS if c["CENTRED"] else NORM_FLOPS) + c["BIAS"] + c["RESIDUAL"]
    numbers = n_rows * width * (2 + c["RESIDUAL"]) + width * (1 + c["BIAS"])
    return Cost(n_rows * width * flops, 4 * numbers)


def qk_norm_rope(
    rec: Recorder,
    batch: Batch,
    label: str,
    config: ModelConfig,
    projected: Tensor,
    gains: Tensor,
    rope_cos_sin: Tensor | None,
    pools: KvPools,
    layer: int,
    q: Tensor,
    *,
    whole: bool = False,
) -> None:
    """Normalise queries and keys, apply RoPE to them, and write keys and values into the cache of
    `layer`; a quantised cache takes a second dispatch.

    projected is (rows, (n_heads + 2 · n_kv_heads) · head_dim). gains are (2 · head_dim,) for a
    query head and a key head, each head normalised by itself, or when `whole` ((n_heads +
    n_kv_heads) · head_dim,), all heads normalised together. rope_cos_sin is as in `qkv`.
    """
    n_heads, d = config.n_heads + 2 * config.n_kv_heads, config.head_dim
    expect_shape(projected, (padded(n_heads * d),), label)
    expect_shape(q, (padded(config.n_heads * d),), label)
    n_gains = config.n_heads + config.n_kv_heads if whole else 2
    expect_shape(gains, (n_gains * d,), label)
    to = KvTarget.of(batch, config, pools, layer)
    rec.dispatch(
        label,
        "qk_norm_rope",
        {
            "step": batch.step,
            "projected": projected,
            "gains": gains,
            "rope_cos_sin": rope_cos_sin,
            "q": q,
            "k_pool": to.keys,
            "v_pool": to.values,
        },
        (n_heads, batch.n_rows, 1),
        {
            "PAIRS": d // 2,
            "HALF": rotary_dim_of(config, rope_cos_sin, label) // 4,
            "N_HEADS": config.n_heads,
            "P_STRIDE": projected.shape[-1],
            "Q_STRIDE": q.shape[-1],
            "EPS": config.norm_eps,
            "WHOLE": whole,
            "LANES": rec.device.policy.row_lanes,
            **to.paging,
        },
        lib={"kv_pair": to.pair},
    )
    quantize_kv(rec, batch, f"{label}.cache", config, pools, layer, q)


@cost_of_kernel("qk_norm_rope")
def qk_norm_rope_cost(dispatch: Dispatch, size: StepSize) -> Cost:
    """Operations: 4 per number of queries and keys, + 3 per rotated number. Bytes: projected heads,
    gains, rope_cos_sin, q, new keys and values."""
    c = constants_of(dispatch)
    d, n_rotated = 2 * c["PAIRS"], 4 * c["HALF"]
    n_normed = c["N_HEADS"] + c["N_KV_HEADS"]
    flops = n_normed * (NORM_FLOPS * d + ROPE_FLOPS * n_rotated)
    row = 4 * (2 * c["N_HEADS"] + 2 * c["N_KV_HEADS"]) * d + 4 * n_rotated
    row += c["N_KV_HEADS"] * cached_head_bytes(dispatch)
    return Cost(size.n_rows * flops, size.n_rows * row + dispatch.tensors["gains"].n_bytes)


def rotary_dim_of(config: ModelConfig, rope_cos_sin: Tensor | None, label: str) -> int:
    """Return the rotated numbers of a head; 0 without rope_cos_sin (context, rotary_dim / 2, 2)."""
    if rope_cos_sin is None:
        return 0
    expect_shape(rope_cos_sin, (config.rope_dim // 2, 2), label)
    return config.rope_dim


def position_embedding(rec: Recorder, batch: Batch, label: str, table: Tensor, x: Tensor) -> None:
    """x (rows, width) += table (context, width) at each row's position, in place."""
    expect_shape(table, (x.shape[-1],), label)
    workgroup = 64
    rec.dispatch(
        label,
        "position_embedding",
        {"step": batch.step, "table": table, "x": x},
        (n_workgroups(x.shape[-1] // 4, workgroup), batch.n_rows, 1),
        {"STRIDE": x.shape[-1], "WORKGROUP": workgroup},
    )


@cost_of_kernel("position_embedding")
def position_embedding_cost(dispatch: Dispatch, size: StepSize) -> Cost:
    """Operations: rN. Bytes: r rows of the table, x read and written."""
    numbers = size.n_rows * constants_of(dispatch)["STRIDE"]
    return Cost(numbers, 12 * numbers)
