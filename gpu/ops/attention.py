"""Attention over the paged KV cache, in one pass or in splits that are merged."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gpu.config import ModelConfig
from gpu.kv.pools import KvPools
from gpu.ops.attention_tiling import AttentionTiling
from gpu.ops.batch import STATE_FLOATS, Batch, KvSplits, expect_shape, n_workgroups, paging
from gpu.ops.cost import (
    CAP_FLOPS,
    STATE_BYTES,
    Cost,
    StepSize,
    cached_head_bytes,
    constants_of,
    cost_of_kernel,
)
from gpu.ops.quantize_kv import inverse_hadamard
from gpu.webgpu.buffers import Tensor
from gpu.webgpu.kernels import Number
from gpu.webgpu.plan import Dispatch, Recorder

SOFTMAX_FLOPS = 5
"""Per score: scale, compare with the maximum, subtract it, exp, add."""
ENTROPY_FLOPS = 2
"""Per score."""


def attention(
    rec: Recorder,
    batch: Batch,
    label: str,
    config: ModelConfig,
    q: Tensor,
    pools: KvPools,
    layer: int,
    out: Tensor,
    entropy: Tensor | None = None,
    masked: Tensor | None = None,
    position_biases: Tensor | None = None,
) -> None:
    """out = softmax(cap(q · kᵀ · scale) [+ biases]) · v over the keys that a row sees in a layer.

    `entropy` (rows, n_heads), in bits, is written if given. `masked` (n_slots, n_heads, 2):
    positions first … end − 1 to which a head does not attend. With `batch.splits` a second dispatch
    merges the splits if there are too many for the first. A rotated cache needs one more for the
    inverse rotation of out. `position_biases` (n_heads, 2 · d + 1), in bits: one for each
    distance −d … d of a key from the row; more distant keys take the first or the last.
    """
    expect_shape(out, (q.shape[-1],), label)
    assert batch.text_ends is None or batch.splits is None, "the merge sees keys up to a row's own"
    n_rows = 1 if batch.apart else batch.n_rows
    tiling = AttentionTiling.of(config, pools.dtype, n_rows, rec.device.policy)
    splits = batch.splits
    merges = splits is not None and _merges(rec, splits, masked)
    rec.dispatch(
        label,
        "attention",
        {
            **_inputs(batch, q, pools, layer, masked, position_biases),
            **_results(label, config, out, entropy, splits, merges=merges),
        },
        (
            config.n_kv_heads * n_workgroups(tiling.group, tiling.heads),
            n_workgroups(batch.n_rows, tiling.rows),
            splits.n if splits else 1,
        ),
        {
            "N_HEADS": config.n_heads,
            "Q_STRIDE": q.shape[-1],
            **score_constants(config, layer),
            "SPLIT": tiling.split,
            "PARTIAL": splits is not None,
            "CAPTURE": entropy is not None,
            "MASKED": masked is not None,
            **paging(config, pools),
            **({"COUNTS_AT": splits.counts_at} if splits and merges else {}),
            **distance_constants(position_biases),
        },
        tiling.prelude | (_merge_prelude(rec) if merges else {}),
        tiling.lib
        | key_lib(batch, position_biases)
        | ({"partial_results": "partial_results_merged"} if merges else {}),
    )
    if splits is not None and not merges:
        attention_merge(rec, batch, f"{label}.merge", config, splits, tiling.split, out, entropy)
    if pools.format.hadamard:
        inverse_hadamard(rec, batch, f"{label}.inverse_hadamard", config, out)


def _merges(rec: Recorder, splits: KvSplits, masked: Tensor | None) -> bool:
    """Return whether the dispatch merges its splits; with masks it would bind more storage buffers
    than some devices allow."""
    return splits.n <= rec.device.policy.merged_splits and masked is None


def _inputs(
    batch: Batch,
    q: Tensor,
    pools: KvPools,
    layer: int,
    masked: Tensor | None,
    position_biases: Tensor | None,
) -> dict[str, Tensor | None]:
    """Return what attention reads."""
    return {
        "step": batch.step,
        "q": q,
        "k_pool": pools.keys[layer],
        "v_pool": pools.values[layer],
        "block_tables": pools.tables_of(layer),
        "masked": masked,
        **key_inputs(batch, position_biases),
    }


def key_inputs(batch: Batch, position_biases: Tensor | None) -> dict[str, Tensor]:
    """Return what the library files of `key_lib` read."""
    found = {"text_ends": batch.text_ends, "position_biases": position_biases}
    return {name: tensor for name, tensor in found.items() if tensor is not None}


def distance_constants(position_biases: Tensor | None) -> dict[str, Number]:
    """Return the constant of the keys that have position biases of their own."""
    return {} if position_biases is None else {"MAX_DISTANCE": position_biases.shape[1] // 2}


def key_lib(batch: Batch, position_biases: Tensor | None) -> dict[str, str]:
    """Return the library files that say which keys a row sees and what their scores are, where they
    are not those of a decoder without biases."""
    variants = {
        "last_seen": batch.text_ends is not None and "text",
        "key_scores": position_biases is not None and "biased",
    }
    return {name: f"{name}_{variant}" for name, variant in variants.items() if variant}


def _results(
    label: str,
    config: ModelConfig,
    out: Tensor,
    entropy: Tensor | None,
    splits: KvSplits | None,
    *,
    merges: bool,
) -> dict[str, Tensor | None]:
    """Return what attention writes: its results, partial results of splits, or both."""
    if entropy is not None:
        expect_shape(entropy, (config.n_heads,), label)
    if splits is None:
        return {"out": out, "heads_out": entropy}
    expect_shape(splits.values, (out.shape[-1],), label)
    expect_shape(splits.states, (config.n_heads, STATE_FLOATS), label)
    if not merges:
        return {"out": splits.values, "heads_out": splits.states}
    partial = {"partial_values": splits.values, "partial_states": splits.states}
    return {"out": out, "heads_out": entropy, **partial}


@cost_of_kernel("attention")
def attention_cost(dispatch: Dispatch, size: StepSize) -> Cost:
    """Operations: keys seen · heads · (4d + 5), + 5 per score with a cap, + r · heads · d.
    Bytes: keys and values of c + r tokens, block table, q, out or the split's partial sums. If it
    merges these, that of `attention_merge` too."""
    c, keys = constants_of(dispatch), dispatch.tensors["k_pool"]
    heads, d = c["N_HEADS"], keys.shape[-1]
    score = 4 * d + SOFTMAX_FLOPS + (ENTROPY_FLOPS if c["CAPTURE"] else 0)
    score += CAP_FLOPS if dispatch.kernel.constants["CAP"] else 0
    flops, n_keys = size.n_seen(c["WINDOW"]) * heads * score, size.n_cached(c["WINDOW"])
    cached = n_keys * c["N_KV_HEADS"] * cached_head_bytes(dispatch)
    n_bytes = cached + 4 * -(-n_keys // c["BLOCK_TOKENS"]) + size.n_rows * 4 * heads * d
    if c["PARTIAL"]:
        cost = Cost(flops, n_bytes + size.n_splits(c["SPLIT"]) * heads * (4 * d + STATE_BYTES))
        merges = "partial_values" in dispatch.tensors
        return cost + _merge_cost(c, d, size) if merges else cost
    entropies = size.n_rows * 4 * heads if c["CAPTURE"] else 0
    return Cost(flops + size.n_rows * heads * d, n_bytes + entropies + size.n_rows * 4 * heads * d)


def score_constants(config: ModelConfig, layer: int) -> dict[str, Number]:
    """Return the constants that turn q · k into a score in bits (times log2(e))."""
    scale = config.head_dim**-0.5 if config.attn_scale is None else config.attn_scale
    cap = config.attn_logit_softcap or 0.0
    return {
        "SCALE": float(np.float32(np.log2(np.e) * scale)),
        "CAP": float(np.float32(np.log2(np.e) * cap)),
        "WINDOW": config.sliding_window_of(layer) or 0,
    }


def _merge_prelude(rec: Recorder) -> dict[str, str]:
    return {"const MERGE_AHEAD": f"{rec.device.policy.merge_ahead}u"}


def attention_merge(
    rec: Recorder,
    batch: Batch,
    label: str,
    config: ModelConfig,
    splits: KvSplits,
    split: int,
    out: Tensor,
    entropy: Tensor | None,
) -> None:
    """out = the partial results of splits of `split` keys, merged in their order."""
    workgroup = 64
    rec.dispatch(
        label,
        "attention_merge",
        {
            "step": batch.step,
            "values": splits.values,
            "states": splits.states,
            "out": out,
            "entropy": entropy,
        },
        (n_workgroups(config.n_heads * config.head_dim // 4, workgroup), batch.n_rows, 1),
        {
            "N_HEADS": config.n_heads,
            "HEAD_VEC4S": config.head_dim // 4,
            "Q_STRIDE": out.shape[-1],
            "SPLIT": split,
            "CAPTURE": entropy is not None,
            "WORKGROUP": workgroup,
        },
        {"const SPLIT_ROWS": f"{rec.device.policy.split_rows}u", **_merge_prelude(rec)},
    )


@cost_of_kernel("attention_merge")
def attention_merge_cost(dispatch: Dispatch, size: StepSize) -> Cost:
    """Operations: heads · d · (3 splits − 2) per row. Bytes: partial sums of the splits, out."""
    c = constants_of(dispatch)
    return _merge_cost(c, 4 * c["HEAD_VEC4S"], size)


def _merge_cost(c: Mapping[str, int], d: int, size: StepSize) -> Cost:
    heads, n_splits = c["N_HEADS"], size.n_splits(c["SPLIT"])
    entropies = size.n_rows * 4 * heads if c["CAPTURE"] else 0
    return Cost(
        heads * d * (3 * n_splits - 2 * size.n_rows),
        n_splits * heads * (4 * d + STATE_BYTES) + size.n_rows * 4 * heads * d + entropies,
    )
