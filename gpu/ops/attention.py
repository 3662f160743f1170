"""Attention over the paged cache, whole or in splits that are put together."""

from __future__ import annotations

import numpy as np

from gpu.config import ModelConfig
from gpu.kv.pools import KvPools
from gpu.ops.attention_cut import FEW_ROWS, AttentionCut
from gpu.ops.batch import STATE_FLOATS, Batch, Splits, expect_shape, groups, paging
from gpu.ops.cache_heads import unrotate_heads
from gpu.runner import DeviceInfo
from gpu.webgpu.buffers import Tensor
from gpu.webgpu.kernels import Number
from gpu.webgpu.plan import Recorder


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
) -> None:
    """out = softmax(cap(q · kᵀ · scale)) · v over the keys that rows see in this layer. `entropy`
    (rows, n_heads), in bits, is filled when given. Splits of `batch.splits` are put together by a
    second dispatch; what comes of a rotated cache is turned back by another."""
    expect_shape(out, (q.shape[-1],), label)
    if entropy is not None:
        expect_shape(entropy, (config.n_heads,), label)
    cut = attention_cut(rec.device.info, config, pools.dtype, batch.n_rows)
    group = config.n_heads // config.n_kv_heads
    splits = batch.splits
    if splits is not None:
        expect_shape(splits.values, (q.shape[-1],), label)
        expect_shape(splits.states, (config.n_heads, STATE_FLOATS), label)
    into, heads_out = (out, entropy) if splits is None else (splits.values, splits.states)
    rec.dispatch(
        label,
        "attention",
        {
            "step": batch.step,
            "q": q,
            "k_pool": pools.keys[layer],
            "v_pool": pools.values[layer],
            "block_tables": pools.tables,
            "out": into,
            "heads_out": heads_out or batch.unwritten,
        },
        (
            config.n_kv_heads * groups(group, cut.heads),
            groups(batch.n_rows, cut.rows),
            splits.n if splits else 1,
        ),
        {
            "N_HEADS": config.n_heads,
            "Q_STRIDE": q.shape[-1],
            **scores(config, layer),
            "SPLIT": cut.split,
            "PARTIAL": splits is not None,
            "CAPTURE": entropy is not None,
            **paging(config, pools),
        },
        cut.prelude,
        cut.lib,
    )
    if splits is not None:
        attention_merge(rec, batch, f"{label}.merge", config, splits, cut.split, out, entropy)
    if pools.format.rotated:
        unrotate_heads(rec, batch, f"{label}.unrotate", config, out)


def scores(config: ModelConfig, layer: int) -> dict[str, Number]:
    """The constants that make q · k a score, in bits: the usual unit times log2(e)."""
    scale = config.head_dim**-0.5 if config.score_scale is None else config.score_scale
    cap = config.score_cap or 0.0
    return {
        "SCALE": float(np.float32(np.log2(np.e) * scale)),
        "CAP": float(np.float32(np.log2(np.e) * cap)),
        "WINDOW": config.window_of(layer) or 0,
    }


def attention_merge(
    rec: Recorder,
    batch: Batch,
    label: str,
    config: ModelConfig,
    splits: Splits,
    split: int,
    out: Tensor,
    entropy: Tensor | None,
) -> None:
    """out = what the splits of `split` keys left, put together in their order."""
    workgroup = 64
    rec.dispatch(
        label,
        "attention_merge",
        {
            "step": batch.step,
            "values": splits.values,
            "states": splits.states,
            "out": out,
            "entropy": entropy or batch.unwritten,
        },
        (groups(config.n_heads * config.head_dim // 4, workgroup), batch.n_rows, 1),
        {
            "N_HEADS": config.n_heads,
            "HEAD_VEC4S": config.head_dim // 4,
            "Q_STRIDE": out.shape[-1],
            "SPLIT": split,
            "CAPTURE": entropy is not None,
            "WORKGROUP": workgroup,
        },
        {"const FEW_ROWS": f"{FEW_ROWS}u"},
    )


def attention_cut(
    info: DeviceInfo, config: ModelConfig, kv_dtype: str, n_rows: int
) -> AttentionCut:
    """Software devices emulate loads, so lanes trade what they loaded where they can."""
    trade = info.software and "subgroup" in info.features
    return AttentionCut.of(config, kv_dtype, n_rows, software=info.software, trade=trade)
