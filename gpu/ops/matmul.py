"""Matmuls (GEMV, GEMM) with weights of any format, dequantised on the way: projections, q/k/v with
RoPE and KV write; and the embedding lookup."""

from __future__ import annotations

from gpu.checkpoint.matrix import Matrix
from gpu.config import ModelConfig
from gpu.kv.formats import KV_STORAGES
from gpu.kv.pools import KvPools
from gpu.ops.batch import Batch, expect_shape, n_workgroups
from gpu.ops.cost import (
    ACTIVATION_FLOPS,
    CAP_FLOPS,
    GATE_FLOPS,
    NORM_FLOPS,
    ROPE_FLOPS,
    Cost,
    StepSize,
    constants_of,
    cost_of_kernel,
    input_row_bytes,
)
from gpu.ops.matmul_input import MatmulInput, matmul_input
from gpu.ops.norms import Norm, rotary_dim_of
from gpu.ops.quantize_kv import KvTarget, quantize_kv
from gpu.webgpu.buffers import Tensor, padded
from gpu.webgpu.kernels import Number
from gpu.webgpu.plan import Dispatch, Recorder

ACTIVATION_CODES = {"silu": 1, "gelu_tanh": 2, "gelu": 3, "relu": 4}
"""Codes in shaders/lib/activation.wgsl; 0 is none."""


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
    """x[row] = table[token of row] · scale.

    The table's format must hold zero exactly, because its padding becomes that of x.
    """
    if table.dtype == "q4":
        raise ValueError(f"{label}: an embedding cannot be q4: its padding would not be zero")
    expect_shape(x, (padded(table.k),), label)
    workgroup = 64
    for shard in table.shards:
        rec.dispatch(
            label,
            "embed",
            {"step": batch.step, "chosen": chosen, "weight": shard.tensor, "x": x},
            (n_workgroups(table.row_loads, workgroup), batch.n_rows, 1),
            {
                "BLOCKS": table.blocks,
                "INTERLEAVE": table.interleaved,
                "FIRST": shard.first,
                "COUNT": shard.n_rows,
                "SCALE": scale,
                "WORKGROUP": workgroup,
            },
            lib={"weight": f"weight_{table.dtype}"},
        )


@cost_of_kernel("embed")
def embed_cost(dispatch: Dispatch, size: StepSize) -> Cost:
    """Bytes: r rows of the table read, x written."""
    c, weight = constants_of(dispatch), dispatch.tensors["weight"]
    if c["FIRST"]:
        return Cost(0, 0)
    width = dispatch.tensors["x"].shape[-1]
    return Cost(0, size.n_rows * (weight.n_bytes // c["COUNT"] + 4 * width))


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
    """y = [residual +] scale · soft_cap(act([norm](x) · weightᵀ [+ bias])), one dispatch per shard.

    activation  a key of `ACTIVATION_CODES`
    gated       act(even columns) · odd columns, half as many columns in y
    cap         v becomes cap · tanh(v / cap)
    gather      y has one row per sample, from the sample's row of x
    gathered    y and x have one row per sample
    bias        (width,) or (rows, width)
    """
    expect_shape(y, (padded(weight.n // 2 if gated else weight.n),), label)
    if residual is not None:
        expect_shape(residual, (y.shape[-1],), label)
    sampled = gather or gathered
    _record_matmul(
        rec,
        "matmul",
        label,
        weight,
        matmul_input(rec, batch, label, x, weight, norm, sampled=sampled),
        batch.n_samples if sampled else batch.n_rows,
        {
            "step": batch.step,
            "bias": bias,
            "residual": residual,
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


@cost_of_kernel("matmul")
def matmul_cost(dispatch: Dispatch, size: StepSize) -> Cost:
    """Operations: 2rNK, + 4rK with a norm, + rN each for a bias, a residual and split norm,
    + 4rN with an activation, + 5rN / 2 if gated, + 5rN with a cap.
    Bytes: weights as stored, x, y (half as many if gated), gain or scales, bias, residual."""
    c, constants = constants_of(dispatch), dispatch.kernel.constants
    n_rows = size.n_samples if c["GATHER"] else size.n_rows
    n = c["N"] // 2 if c["GATED"] else c["N"]
    cost = _projection_cost(dispatch, n_rows) + Cost(0, n_rows * 4 * n)
    if c["GATED"]:
        cost += Cost(n_rows * GATE_FLOPS * n, 0)
    elif c["ACTIVATION"]:
        cost += Cost(n_rows * ACTIVATION_FLOPS * n, 0)
    if constants["CAP"]:
        cost += Cost(n_rows * CAP_FLOPS * n, 0)
    if c["RESIDUAL"]:
        cost += Cost(n_rows * n, n_rows * 4 * n)
    return cost


def qkv(
    rec: Recorder,
    batch: Batch,
    label: str,
    config: ModelConfig,
    x: Tensor,
    weight: Matrix,
    rope_cos_sin: Tensor | None,
    pools: KvPools,
    layer: int,
    q: Tensor | None,
    *,
    norm: Norm | None = None,
    bias: Tensor | None = None,
) -> None:
    """Project [norm](x) to queries, keys and values, apply RoPE to queries and keys, and write keys
    and values into the cache of `layer`; a quantised cache takes a second dispatch.

    `weight` and `bias` have the order of `WeightLoader.qkv`, `bias` the shapes of `matmul`. q None:
    of a weight of keys and values alone, those of cross-attention, into a cache of floats.
    rope_cos_sin is (context, rotary_dim / 2, 2); None: no RoPE.
    """
    n_queries = config.n_heads if q is not None else 0
    n_heads = n_queries + 2 * config.n_kv_heads
    if weight.n != n_heads * config.head_dim:
        raise ValueError(f"{label}: {weight.n} rows, expected {n_heads} heads of {config.head_dim}")
    if q is not None:
        expect_shape(q, (padded(config.n_heads * config.head_dim),), label)
    rotary_dim = rotary_dim_of(config, rope_cos_sin, label)
    to = KvTarget.of(batch, config, pools, layer)
    _record_matmul(
        rec,
        "qkv",
        label,
        weight,
        matmul_input(rec, batch, label, x, weight, norm),
        batch.n_rows,
        {
            "step": batch.step,
            "bias": bias,
            "rope_cos_sin": rope_cos_sin,
            "q": q,
            "k_pool": to.keys,
            "v_pool": to.values,
        },
        {
            **_biased(bias),
            "HEAD_DIM": config.head_dim,
            "ROTARY_DIM": rotary_dim,
            "N_HEADS": n_queries,
            "Q_STRIDE": q.shape[-1] if q is not None else 0,
            **to.paging,
        },
        {"kv_pair": to.pair},
        in_quads=True,
    )
    if q is not None:
        quantize_kv(rec, batch, f"{label}.cache", config, pools, layer, q)


@cost_of_kernel("qkv")
def qkv_cost(dispatch: Dispatch, size: StepSize) -> Cost:
    """Operations: those of `matmul`, + 3r per rotated number. Bytes: weights, x, gain or scales,
    bias, rope_cos_sin, q, new keys and values."""
    c, keys = constants_of(dispatch), dispatch.tensors["k_pool"]
    d = c["HEAD_DIM"]
    q_end = c["N_HEADS"] * d
    k_end = q_end + c["N_KV_HEADS"] * d
    first, last = c["FIRST"], c["FIRST"] + c["N"]
    n_roped = max(0, min(last, k_end) - first) * c["ROTARY_DIM"] // d
    n_queries = max(0, min(last, q_end) - first)
    row_bytes = 4 * n_queries + KV_STORAGES[keys.dtype].head_bytes(d) * (c["N"] - n_queries) // d
    rope_bytes = 0 if first else 4 * c["ROTARY_DIM"]
    rope = Cost(size.n_rows * ROPE_FLOPS * n_roped, size.n_rows * (rope_bytes + row_bytes))
    return _projection_cost(dispatch, size.n_rows) + rope


def _biased(bias: Tensor | None) -> dict[str, Number]:
    own = bias is not None and len(bias.shape) > 1
    return {"BIAS": bias is not None, "BIAS_STRIDE": bias.shape[-1] if bias and own else 0}


def _record_matmul(
    rec: Recorder,
    shader: str,
    label: str,
    weight: Matrix,
    rows: MatmulInput,
    n_rows: int,
    tensors: dict[str, Tensor | None],
    constants: dict[str, Number],
    lib: dict[str, str] | None = None,
    *,
    in_quads: bool = False,
) -> None:
    """Record one dispatch per shard of a shader that uses shaders/lib/matmul_tile.wgsl. `in_quads`:
    tiles must hold whole quads of columns."""
    of_weight = {"K": weight.k, "BLOCKS": weight.blocks, "INTERLEAVE": weight.interleaved}
    shared = {**of_weight, **rows.constants, **constants}
    for shard in weight.shards:
        tile = rec.device.tuning.tile(
            n_rows,
            shard.n_rows,
            weight.blocks,
            in_quads=in_quads,
            may_share=rows.may_share,
            dtype=weight.dtype,
            q8=rows.q8,
        )
        group_m, group_n = tile.group
        grid = (n_workgroups(shard.n_rows, group_n), n_workgroups(n_rows, group_m), 1)
        rec.dispatch(
            label,
            shader,
            {**tensors, **rows.tensors, "weight": shard.tensor},
            grid,
            {**shared, "N": shard.n_rows, "FIRST": shard.first},
            tile.prelude,
            {**tile.lib(q8=rows.q8), **rows.lib, **(lib or {})},
        )


def _projection_cost(dispatch: Dispatch, n_rows: int) -> Cost:
    """Return the cost of [norm](x) · weightᵀ [+ bias], without writing the result."""
    c = constants_of(dispatch)
    k, n = c["K"], c["N"]
    cost = Cost(n_rows * 2 * n * k, dispatch.tensors["weight"].n_bytes)
    if c["FIRST"] == 0:
        cost += Cost(0, n_rows * input_row_bytes(dispatch))
    if c.get("NORM") and c["FIRST"] == 0:
        cost += Cost(n_rows * NORM_FLOPS * k, 4 * k)
    if c.get("PRE_NORMED"):
        cost += Cost(n_rows * n, 0 if c["FIRST"] else 4 * n_rows)
    if c["BIAS"]:
        cost += Cost(n_rows * n, 4 * n * (n_rows if c["BIAS_STRIDE"] else 1))
    return cost
