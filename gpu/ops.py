"""The operations models are written with. Each checks shapes and records the dispatches of its
shader; the shader of the same name says what it computes, `reference` computes it with NumPy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpu.attention_cut import FEW_ROWS, AttentionCut
from gpu.blocks import BLOCK_TOKENS
from gpu.buffers import Memory, Tensor, padded
from gpu.config import ModelConfig
from gpu.kernels import Number
from gpu.kv_cache import KvPools
from gpu.plan import Recorder
from gpu.step import DeviceInfo
from gpu.weights import Matrix

STATE_FLOATS = 3
"""Of a head's State in shaders/lib/softmax_state.wgsl: maximum, sum, weighted."""


@dataclass(frozen=True, slots=True)
class Splits:
    """What the splits of long contexts leave, for a step of few rows whose attention is spread over
    `n` workgroups a row.

    values  (≥ n · FEW_ROWS, padded query width)
    states  (≥ n · FEW_ROWS, n_heads, STATE_FLOATS)
    """

    n: int
    values: Tensor
    states: Tensor

    @classmethod
    def make(cls, config: ModelConfig, n: int, memory: Memory) -> Splits:
        """Room for `n` splits."""
        rows, width = n * FEW_ROWS, padded(config.n_heads * config.head_dim)
        return cls(
            n,
            memory.zeros("attention.values", (rows, width)),
            memory.zeros("attention.states", (rows, config.n_heads, STATE_FLOATS)),
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """What every op of a step shares: the step's uniform buffer, how many rows and samples the
    plan is recorded for, stand-ins for bindings an op does not use, and the splits of long contexts
    (None: every workgroup of attention walks its whole context)."""

    step: Tensor
    n_rows: int
    n_samples: int
    unread: Tensor
    unwritten: Tensor
    splits: Splits | None = None

    @classmethod
    def make(cls, memory: Memory, step: Tensor, n_rows: int, n_samples: int) -> Batch:
        return cls(
            step, n_rows, n_samples, memory.zeros("unread", (8,)), memory.zeros("unwritten", (8,))
        )


def embed(
    rec: Recorder, batch: Batch, label: str, table: Matrix, chosen: Tensor, x: Tensor
) -> None:
    """x[row] = table[token of row]. The table's format must hold zero exactly: it fills the padding
    of x."""
    if table.dtype == "q4":
        raise ValueError(f"{label}: a table in q4 would leave its minimum in the padding of x")
    expect_shape(x, (padded(table.k),), label)
    workgroup = 64
    for shard in table.shards:
        rec.dispatch(
            label,
            "embed",
            {"step": batch.step, "table": shard.tensor, "chosen": chosen, "x": x},
            (groups(table.row_loads, workgroup), batch.n_rows, 1),
            {
                "BLOCKS": table.blocks,
                "FIRST": shard.first,
                "COUNT": shard.n_rows,
                "WORKGROUP": workgroup,
            },
            lib={"weight": f"weight_{table.dtype}"},
        )


@dataclass(frozen=True, slots=True)
class Norm:
    """RMSNorm of a product's input."""

    gain: Tensor
    eps: float


def matmul(
    rec: Recorder,
    batch: Batch,
    label: str,
    x: Tensor,
    weight: Matrix,
    y: Tensor,
    *,
    norm: Norm | None = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    gated: bool = False,
    gather: bool = False,
) -> None:
    """y = [residual +] act([norm](x) · weightᵀ [+ bias]), a dispatch for each shard.

    `gated`: columns in pairs, silu(even) · odd, half as many in y. `gather`: one row of y for each
    sample, from its row of x.
    """
    expect_shape(x, (padded(weight.k),), label)
    expect_shape(y, (padded(weight.n // 2 if gated else weight.n),), label)
    if residual is not None:
        expect_shape(residual, (y.shape[-1],), label)
    _record_product(
        rec,
        "matmul",
        label,
        weight,
        norm,
        batch.n_samples if gather else batch.n_rows,
        {
            "step": batch.step,
            "x": x,
            "gain": norm.gain if norm else batch.unread,
            "bias": bias or batch.unread,
            "residual": residual or batch.unread,
            "y": y,
        },
        {
            "Y_STRIDE": y.shape[-1],
            "BIAS": bias is not None,
            "GATED": gated,
            "RESIDUAL": residual is not None,
            "GATHER": gather,
        },
    )


def qkv(
    rec: Recorder,
    batch: Batch,
    label: str,
    config: ModelConfig,
    x: Tensor,
    weight: Matrix,
    rotations: Tensor,
    pools: KvPools,
    layer: int,
    q: Tensor,
    *,
    norm: Norm,
    bias: Tensor | None = None,
) -> None:
    """Project [norm](x) to queries, keys and values, turn queries and keys by their rows' positions
    and write keys and values into the cache of `layer`. `weight` and `bias` are in the order of
    `WeightLoader.heads`; rotations (context, head_dim / 2, 2)."""
    n_heads = config.n_heads + 2 * config.n_kv_heads
    if weight.n != n_heads * config.head_dim:
        raise ValueError(f"{label}: {weight.n} rows are not {n_heads} heads of {config.head_dim}")
    expect_shape(x, (padded(weight.k),), label)
    expect_shape(q, (padded(config.n_heads * config.head_dim),), label)
    expect_shape(rotations, (config.head_dim // 2, 2), label)
    _record_product(
        rec,
        "qkv",
        label,
        weight,
        norm,
        batch.n_rows,
        {
            "step": batch.step,
            "x": x,
            "gain": norm.gain,
            "bias": bias or batch.unread,
            "rotations": rotations,
            "q": q,
            "k_pool": pools.keys[layer],
            "v_pool": pools.values[layer],
        },
        {
            "BIAS": bias is not None,
            "HEAD_DIM": config.head_dim,
            "N_HEADS": config.n_heads,
            "Q_STRIDE": q.shape[-1],
            **paging(config, pools),
        },
        {"kv_pair": f"kv_pair_{pools.dtype}"},
        fours=True,
    )


def _record_product(
    rec: Recorder,
    shader: str,
    label: str,
    weight: Matrix,
    norm: Norm | None,
    n_rows: int,
    tensors: dict[str, Tensor],
    constants: dict[str, Number],
    lib: dict[str, str] | None = None,
    *,
    fours: bool = False,
) -> None:
    """A dispatch for each shard of what uses shaders/lib/product.wgsl. `fours`: columns belong
    together in fours."""
    shared: dict[str, Number] = {
        "K": weight.k,
        "BLOCKS": weight.blocks,
        "EPS": norm.eps if norm else 0.0,
        "NORM": norm is not None,
        **constants,
    }
    for shard in weight.shards:
        tile = rec.device.tuning.tile(n_rows, shard.n_rows, weight.blocks, fours=fours)
        grid = (groups(shard.n_rows, tile.n * tile.columns), groups(n_rows, tile.m), 1)
        rec.dispatch(
            label,
            shader,
            {**tensors, "weight": shard.tensor},
            grid,
            {**shared, "N": shard.n_rows, "FIRST": shard.first},
            tile.prelude,
            {"weight": f"weight_{weight.dtype}", "x_tile": tile.x_tile, **(lib or {})},
        )


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
    """out = softmax(q · kᵀ / √head_dim) · v. `entropy` (rows, n_heads), in bits, is
    filled when given. Splits of `batch.splits` are put together by a second dispatch."""
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
            "SCALE": score_scale(config),
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


def score_scale(config: ModelConfig) -> float:
    """What makes q · k a score in bits: log2(e) / √head_dim."""
    return float(np.float32(np.log2(np.e) * config.head_dim**-0.5))


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


def layer_stats(
    rec: Recorder,
    batch: Batch,
    label: str,
    config: ModelConfig,
    states: Tensor,
    middles: Tensor,
    stats: Tensor,
) -> None:
    """Norms of the residual stream and its updates: stats (rows, 1 + 3 · n_layers)."""
    expect_shape(stats, (1 + 3 * config.n_layers,), label)
    rec.dispatch(
        label,
        "layer_stats",
        {"step": batch.step, "states": states, "middles": middles, "stats": stats},
        (config.n_layers, batch.n_rows, 1),
        {
            "X_STRIDE": padded(config.hidden_size),
            "STATE_STRIDE": states.shape[-1],
            "N_LAYERS": config.n_layers,
            "LANES": 8 if rec.device.info.software else 64,
        },
    )


def paging(config: ModelConfig, pools: KvPools) -> dict[str, Number]:
    """The constants of shaders/lib/paging.wgsl."""
    return {
        "BLOCK_TOKENS": BLOCK_TOKENS,
        "MAX_BLOCKS": pools.shape.max_blocks,
        "N_KV_HEADS": config.n_kv_heads,
    }


def groups(n: int, size: int) -> int:
    """Workgroups of `size` that cover `n`."""
    return -(-n // size)


def expect_shape(tensor: Tensor, last: tuple[int, ...], label: str) -> None:
    """Raises ValueError when the last dimensions of `tensor` are not `last`."""
    if tensor.shape[-len(last) :] != last:
        raise ValueError(f"{label}: {tensor!r} should end in dimensions {list(last)}")
