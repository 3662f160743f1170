"""Products with weights: an embedding's rows, a matrix, and the heads of attention."""

from __future__ import annotations

from dataclasses import dataclass

from gpu.checkpoint.weights import Matrix
from gpu.config import ModelConfig
from gpu.kv.pools import KvPools
from gpu.ops.batch import Batch, expect_shape, groups, paging
from gpu.webgpu.buffers import Tensor, padded
from gpu.webgpu.kernels import Number
from gpu.webgpu.plan import Recorder


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
