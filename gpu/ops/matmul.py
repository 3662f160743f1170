"""Products with weights: an embedding's rows, a matrix, and the heads of attention."""

from __future__ import annotations

from gpu.checkpoint.matrix import Matrix
from gpu.config import ModelConfig
from gpu.kv.pools import KvPools
from gpu.ops.batch import Batch, expect_shape, groups
from gpu.ops.cache_heads import Destination, cache_heads
from gpu.ops.norms import Norm, turned_dim
from gpu.ops.operands import Operand, operand
from gpu.webgpu.buffers import Tensor, padded
from gpu.webgpu.kernels import Number
from gpu.webgpu.plan import Recorder

ACTIVATION_CODES = {"silu": 1, "gelu_tanh": 2, "gelu": 3}
"""As shaders/lib/activation.wgsl numbers them; 0 is none."""


def embed(
    rec: Recorder,
    batch: Batch,
    label: str,
    table: Matrix,
    chosen: Tensor,
    x: Tensor,
    *,
    scale: float = 1.0,
) -> None:
    """x[row] = table[token of row] · scale. The table's format must hold zero exactly: it fills the
    padding of x."""
    if table.dtype == "q4":
        raise ValueError(f"{label}: a table in q4 would leave its minimum in the padding of x")
    expect_shape(x, (padded(table.k),), label)
    workgroup = 64
    for shard in table.shards:
        rec.dispatch(
            label,
            "embed",
            {"step": batch.step, "chosen": chosen, "weight": shard.tensor, "x": x},
            (groups(table.row_loads, workgroup), batch.n_rows, 1),
            {
                "BLOCKS": table.blocks,
                "ABREAST": table.abreast,
                "FIRST": shard.first,
                "COUNT": shard.n_rows,
                "SCALE": scale,
                "WORKGROUP": workgroup,
            },
            lib={"weight": f"weight_{table.dtype}"},
        )


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
    activation: str | None = None,
    gated: bool = False,
    scale: float = 1.0,
    cap: float | None = None,
    gather: bool = False,
    gathered: bool = False,
) -> None:
    """y = [residual +] scale · capped(act([norm](x) · weightᵀ [+ bias])), a dispatch for each
    shard.

    `activation`: of `ACTIVATION_CODES`. `gated`: columns in pairs, act(even) · odd, half as many in
    y. `cap`: v becomes cap · tanh(v / cap). `gather`: one row of y for each sample, from its row of
    x, or, when `gathered`, from the row of x in its own place. `bias`: (width,), or of each row
    (rows, width).
    """
    expect_shape(y, (padded(weight.n // 2 if gated else weight.n),), label)
    if residual is not None:
        expect_shape(residual, (y.shape[-1],), label)
    sampled = gather or gathered
    _record_product(
        rec,
        "matmul",
        label,
        weight,
        operand(rec, batch, label, x, weight, norm, sampled=sampled),
        batch.n_samples if sampled else batch.n_rows,
        {
            "step": batch.step,
            "bias": bias or batch.unread,
            "residual": residual or batch.unread,
            "y": y,
        },
        {
            "Y_STRIDE": y.shape[-1],
            **_biased(bias),
            "ACTIVATION": ACTIVATION_CODES[activation] if activation else 0,
            "GATED": gated,
            "SCALE": scale,
            "CAP": cap or 0.0,
            "RESIDUAL": residual is not None,
            "GATHER": sampled,
            "GATHERED": gathered,
        },
    )


def qkv(
    rec: Recorder,
    batch: Batch,
    label: str,
    config: ModelConfig,
    x: Tensor,
    weight: Matrix,
    rotations: Tensor | None,
    pools: KvPools,
    layer: int,
    q: Tensor,
    *,
    norm: Norm | None = None,
    bias: Tensor | None = None,
) -> None:
    """Project [norm](x) to queries, keys and values, turn queries and keys by their rows' positions
    and write keys and values into the cache of `layer`, by a second dispatch where it is quantised.
    `weight` and `bias` are in the order of `WeightLoader.heads`, `bias` as in `matmul`; rotations
    (context, rotary_dim / 2, 2), None: nothing is turned."""
    n_heads = config.n_heads + 2 * config.n_kv_heads
    if weight.n != n_heads * config.head_dim:
        raise ValueError(f"{label}: {weight.n} rows are not {n_heads} heads of {config.head_dim}")
    expect_shape(q, (padded(config.n_heads * config.head_dim),), label)
    rotary_dim = turned_dim(config, rotations, label)
    to = Destination.of(batch, config, pools, layer)
    _record_product(
        rec,
        "qkv",
        label,
        weight,
        operand(rec, batch, label, x, weight, norm),
        batch.n_rows,
        {
            "step": batch.step,
            "bias": bias or batch.unread,
            "rotations": rotations or batch.unread,
            "q": q,
            "k_pool": to.keys,
            "v_pool": to.values,
        },
        {
            **_biased(bias),
            "HEAD_DIM": config.head_dim,
            "ROTARY_DIM": rotary_dim,
            "N_HEADS": config.n_heads,
            "Q_STRIDE": q.shape[-1],
            **to.paging,
        },
        {"kv_pair": to.pair},
        fours=True,
    )
    cache_heads(rec, batch, f"{label}.cache", config, pools, layer, q)


def _biased(bias: Tensor | None) -> dict[str, Number]:
    own = bias is not None and len(bias.shape) > 1
    return {"BIAS": bias is not None, "BIAS_STRIDE": bias.shape[-1] if bias and own else 0}


def _record_product(
    rec: Recorder,
    shader: str,
    label: str,
    weight: Matrix,
    rows: Operand,
    n_rows: int,
    tensors: dict[str, Tensor],
    constants: dict[str, Number],
    lib: dict[str, str] | None = None,
    *,
    fours: bool = False,
) -> None:
    """A dispatch for each shard of what uses shaders/lib/product.wgsl. `fours`: columns belong
    together in fours."""
    of_weight = {"K": weight.k, "BLOCKS": weight.blocks, "ABREAST": weight.abreast}
    shared = {**of_weight, **rows.constants, **constants}
    for shard in weight.shards:
        tile = rec.device.tuning.tile(n_rows, shard.n_rows, weight.blocks, fours=fours)
        grid = (groups(shard.n_rows, tile.n * tile.columns), groups(n_rows, tile.m), 1)
        rec.dispatch(
            label,
            shader,
            {**tensors, **rows.tensors, "weight": shard.tensor},
            grid,
            {**shared, "N": shard.n_rows, "FIRST": shard.first},
            tile.prelude,
            {**rows.lib, "x_tile": tile.x_tile, **(lib or {})},
        )
