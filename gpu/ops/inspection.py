"""The operations that only questions about a run need: no plan that writes text has them."""

from __future__ import annotations

from gpu.config import Experts, ModelConfig
from gpu.errors import DeviceError
from gpu.kv.pools import KvPools
from gpu.ops.attention import scores
from gpu.ops.batch import Batch, expect_shape, paging
from gpu.ops.packed import cached_lib, packing_prelude
from gpu.webgpu.buffers import Tensor, padded
from gpu.webgpu.plan import Recorder

WEIGHTS_LANES = 256
"""Lanes over the keys: as many as every device has, so that long contexts need few rounds."""
MAX_ROUNDS = 65_535
"""Mesa's software device ends all loops of a shader after so many rounds in all, silently."""


def attention_weights(
    rec: Recorder,
    batch: Batch,
    label: str,
    config: ModelConfig,
    q: Tensor,
    pools: KvPools,
    layer: int,
    keys: Tensor,
    weights: Tensor,
) -> None:
    """weights = softmax(cap(q · kᵀ · scale)) of a range of keys: (n_rows, n_heads, n) at the start
    of a tensor with room for them. `keys`: uniform, the first key's position and n, read when the
    plan runs, so that one plan serves every range.

    Raises DeviceError where a software device would end the walk over the longest context early.
    """
    expect_shape(q, (padded(config.n_heads * config.head_dim),), label)
    _expect_rounds(rec, config, pools, label)
    rec.dispatch(
        label,
        "attention_weights",
        {
            "step": batch.step,
            "range": keys,
            "q": q,
            "k_pool": pools.keys[layer],
            "block_tables": pools.tables,
            "weights": weights,
        },
        (config.n_heads, batch.n_rows, 1),
        {
            "N_HEADS": config.n_heads,
            "HEAD_VEC4S": config.head_dim // 4,
            "GROUP": config.n_heads // config.n_kv_heads,
            "Q_STRIDE": q.shape[-1],
            **scores(config, layer),
            "LANES": WEIGHTS_LANES,
            **paging(config, pools),
        },
        packing_prelude(pools.format, config.head_dim),
        cached_lib(pools.format) or {"kv": f"kv_{pools.dtype}"},
    )


def _expect_rounds(rec: Recorder, config: ModelConfig, pools: KvPools, label: str) -> None:
    """Two walks over the context, each key a round and one for every four of its numbers."""
    walk = -(-pools.shape.context // WEIGHTS_LANES)
    rounds = 2 * walk * (1 + config.head_dim // 4) + WEIGHTS_LANES.bit_length()
    if rec.device.info.software and rounds > MAX_ROUNDS:
        raise DeviceError(
            f"{label}: attention weights over a context of {pools.shape.context:,} tokens need "
            f"{rounds:,} rounds, but software devices end a shader after {MAX_ROUNDS:,}; use a "
            "real GPU or a shorter --context"
        )


def expert_norms(
    rec: Recorder, batch: Batch, label: str, experts: Experts, parts: Tensor, norms: Tensor
) -> None:
    """norms (rows, per_token): the lengths of what the experts of each row gave it, of parts
    (rows · per_token, width)."""
    expect_shape(norms, (experts.per_token,), label)
    rec.dispatch(
        label,
        "expert_norms",
        {"step": batch.step, "parts": parts, "norms": norms},
        (batch.n_rows * experts.per_token, 1, 1),
        {"PER_TOKEN": experts.per_token, "STRIDE": parts.shape[-1]},
    )
