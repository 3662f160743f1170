"""Operations that only inspection records; plans that write text have none of them."""

from __future__ import annotations

from gpu.config import ModelConfig, MoeConfig
from gpu.errors import DeviceError
from gpu.kv.pools import KvPools
from gpu.ops.attention import distance_constants, key_inputs, key_lib, score_constants
from gpu.ops.batch import Batch, expect_shape, paging
from gpu.ops.packed import cached_lib, packing_prelude
from gpu.webgpu.buffers import Tensor, padded
from gpu.webgpu.plan import Recorder

WEIGHTS_LANES = 256
"""Lanes over the keys: as many as every device has, to keep the loops over long contexts short."""


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
    masked: Tensor | None = None,
    position_biases: Tensor | None = None,
) -> None:
    """weights (n_rows, n_heads, n) = softmax(cap(q · kᵀ · scale) [+ biases]) of a range of n keys.

    `keys` is a uniform buffer of the first key's position and n, read when the plan runs: one plan
    serves every range. `weights` may be larger than the range needs. `masked`, `position_biases`:
    see `gpu.ops.attention.attention`. Raises DeviceError if the device would end the loop over the
    longest context early.
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
            "block_tables": pools.tables_of(layer),
            "weights": weights,
            "masked": masked,
            **key_inputs(batch, position_biases),
        },
        (config.n_heads, batch.n_rows, 1),
        {
            "N_HEADS": config.n_heads,
            "HEAD_VEC4S": config.head_dim // 4,
            "GROUP": config.n_heads // config.n_kv_heads,
            "Q_STRIDE": q.shape[-1],
            **score_constants(config, layer),
            "LANES": WEIGHTS_LANES,
            "MASKED": masked is not None,
            **distance_constants(position_biases),
            **paging(config, pools),
        },
        packing_prelude(pools.format, config.head_dim),
        (cached_lib(pools.format) or {"kv": f"kv_{pools.dtype}"}) | key_lib(batch, position_biases),
    )


def _expect_rounds(rec: Recorder, config: ModelConfig, pools: KvPools, label: str) -> None:
    """Raise DeviceError if two walks over the context need more loop rounds than the device has."""
    walk = -(-pools.shape.context // WEIGHTS_LANES)
    rounds = 2 * walk * (1 + config.head_dim // 4) + WEIGHTS_LANES.bit_length()
    most = rec.device.policy.max_loop_rounds
    if most is not None and rounds > most:
        raise DeviceError(
            f"{label}: attention weights over a context of {pools.shape.context:,} tokens need "
            f"{rounds:,} rounds, but software devices end a shader after {most:,}; use a "
            "real GPU or a shorter --context"
        )


def moe_expert_norms(
    rec: Recorder, batch: Batch, label: str, experts: MoeConfig, expert_out: Tensor, norms: Tensor
) -> None:
    """norms (rows, experts_per_token) = ‖expert_out‖, for expert_out (rows · experts_per_token,
    width)."""
    expect_shape(norms, (experts.experts_per_token,), label)
    rec.dispatch(
        label,
        "moe_expert_norms",
        {"step": batch.step, "expert_out": expert_out, "norms": norms},
        (batch.n_rows * experts.experts_per_token, 1, 1),
        {"EXPERTS_PER_TOKEN": experts.experts_per_token, "STRIDE": expert_out.shape[-1]},
    )
