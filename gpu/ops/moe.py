"""Mixture of experts (Shazeer et al. 2017): the experts' matmuls and the sum of their outputs.

A layer records

    moe_topk     exact top-k of the router's logits (`gpu.ops.moe_routing`)
    moe_permute  assignments sorted by expert, in tiles of one expert (vLLM's moe_align_block_size);
                 steps of few rows skip it, as their rows hardly share experts: each assignment is
                 a tile
    moe_matmul   gate and up of every assignment; again, down of every assignment
    moe_combine  sum of a row's outputs, weighted by its gates

The bits of a row do not depend on the other rows: the order of a sum in `moe_matmul` depends on the
matrix alone, as in `matmul`, and a row's assignments are added in their own order.

`slots[expert]` (n_experts,) u32 is the slot of an expert's rows in an `ExpertStack`, counted in
experts. With all experts resident it is 0, 1, 2, …; a stack may have fewer slots than experts if
every expert that a step chooses is in its slot when `moe_matmul` runs. Only `moe_matmul` reads
`slots`, so it may be written between a step's `moe_topk` and its `moe_matmul`. For a slot outside
the stack nothing is computed and y keeps its old values: such a step must be discarded.
"""

from __future__ import annotations

from gpu.checkpoint.matrix import ExpertStack
from gpu.config import MoeConfig
from gpu.ops.batch import Batch, expect_shape, n_workgroups
from gpu.ops.cost import (
    GATE_FLOPS,
    NORM_FLOPS,
    Cost,
    StepSize,
    constants_of,
    cost_of_kernel,
    input_row_bytes,
)
from gpu.ops.matmul import ACTIVATION_CODES
from gpu.ops.matmul_input import MatmulInput, matmul_input
from gpu.ops.moe_routing import (
    ExpertPermutation,
    ExpertRouting,
    expect_routing,
    is_permuted,
    max_tiles,
    tile_assignments,
)
from gpu.ops.norms import Norm
from gpu.webgpu.buffers import Tensor, padded
from gpu.webgpu.kernels import Number
from gpu.webgpu.plan import Dispatch, Recorder
from gpu.webgpu.tiling import Tile, Tuning

NOT_RESIDENT = 0xFFFFFFFF
"""Slot of an expert whose weights are not in the stack."""
WORKGROUP = 64


def moe_matmul(
    rec: Recorder,
    batch: Batch,
    label: str,
    experts: MoeConfig,
    x: Tensor,
    weight: ExpertStack,
    slots: Tensor,
    routing: ExpertRouting,
    permutation: ExpertPermutation,
    y: Tensor,
    *,
    norm: Norm | None = None,
    bias: Tensor | None = None,
    activation: str | None = None,
    gated: bool = False,
    per_assignment: bool = False,
) -> None:
    """y (assignments, …) = act([norm](x) · weightᵀ [+ bias]) with the weight of each assignment's
    expert, one dispatch per shard.

    x has one row per row of the step or, with `per_assignment`, per assignment. bias has one row
    per assignment, (assignments, ≥ weight.n). `moe_permute` must come before where `is_permuted`.
    The rest is as in `matmul`.
    """
    expect_shape(y, (padded(weight.n // 2 if gated else weight.n),), label)
    expect_shape(slots, (experts.n_experts,), label)
    expect_routing(routing, experts, label)
    tuning, matrix, k = rec.device.tuning, weight.matrix, experts.experts_per_token
    permuted = is_permuted(experts, batch.n_rows)
    m = tile_assignments(tuning, experts, batch.n_rows)
    rows = matmul_input(rec, batch, label, x, matrix, norm, each=k if per_assignment else 1)
    tile = _expert_tile(tuning, m, weight, rows)
    group_m, group_n = tile.group
    if group_m != m:
        raise ValueError(f"{label}: tiles of {m} assignments cannot fold in a norm")
    tensors = {
        "step": batch.step,
        **rows.tensors,
        "assignments": permutation.order if permuted else routing.expert_ids,
        "bias": bias,
        "tiles": permutation.tiles if permuted else None,
        "slots": slots,
        "y": y,
    }
    constants = {
        **_stack_constants(weight),
        **rows.constants,
        "EXPERTS_PER_TOKEN": k,
        "X_ASSIGNMENTS": 1 if per_assignment else k,
        **_output_constants(y, bias, activation, gated),
        "PERMUTED": permuted,
    }
    grid = n_workgroups(weight.n, group_n), max_tiles(experts, batch.n_rows, m), 1
    lib = {**tile.lib(q8=rows.q8), **rows.lib}
    for shard in matrix.shards:
        bound = {**tensors, "weight": shard.tensor}
        constants["FIRST_SLOT"] = shard.first // weight.n
        constants["N_SLOTS"] = shard.n_rows // weight.n
        rec.dispatch(label, "moe_matmul", bound, grid, constants, tile.prelude, lib)


def _expert_tile(tuning: Tuning, m: int, weight: ExpertStack, rows: MatmulInput) -> Tile:
    """Return the tile of `m` rows of an expert."""
    return tuning.tile(
        m,
        weight.n,
        weight.matrix.blocks,
        may_share=rows.may_share,
        of_expert=True,
        dtype=weight.matrix.dtype,
        q8=rows.q8,
    )


def _stack_constants(weight: ExpertStack) -> dict[str, Number]:
    matrix = weight.matrix
    return {
        "K": matrix.k,
        "N": weight.n,
        "BLOCKS": matrix.blocks,
        "INTERLEAVE": matrix.interleaved,
    }


def _output_constants(
    y: Tensor, bias: Tensor | None, activation: str | None, gated: bool
) -> dict[str, Number]:
    return {
        "Y_STRIDE": y.shape[-1],
        "BIAS": bias is not None,
        "BIAS_STRIDE": bias.shape[-1] if bias else 0,
        "ACTIVATION": ACTIVATION_CODES[activation] if activation else 0,
        "GATED": gated,
    }


@cost_of_kernel("moe_matmul")
def moe_matmul_cost(dispatch: Dispatch, size: StepSize) -> Cost:
    """Operations: 2NK per assignment, norm, bias and gate as in `matmul`. Bytes: weights of the
    experts used, x, y of the assignments.

    Which experts a step uses is not known before it runs. r rows count as n · (1 − (1 − k/n)^r)
    experts, as if each row chose k of n at random; one row uses k. A shard has its share of them.
    """
    c, n_experts = constants_of(dispatch), dispatch.tensors["slots"].shape[0]
    k, n = c["K"], c["N"]
    share = c["N_SLOTS"] / n_experts
    assignments = size.n_rows * c["EXPERTS_PER_TOKEN"] * share
    unused = (1 - c["EXPERTS_PER_TOKEN"] / n_experts) ** size.n_rows
    weights = dispatch.tensors["weight"].n_bytes * (1 - unused)
    n_y = n // 2 if c["GATED"] else n
    flops = assignments * (2 * n * k + (GATE_FLOPS * n_y if c["GATED"] else 0) + n * c["BIAS"])
    n_bytes = weights + assignments * 4 * (n_y + n * c["BIAS"])
    if c["FIRST_SLOT"] == 0:
        x_rows = size.n_rows * c["EXPERTS_PER_TOKEN"] / c["X_ASSIGNMENTS"]
        n_bytes += input_row_bytes(dispatch) * x_rows
        flops += size.n_rows * NORM_FLOPS * k if c.get("NORM") else 0
        n_bytes += 4 * k if c.get("NORM") else 4 * size.n_rows if c.get("PRE_NORMED") else 0
    flops += assignments * n if c.get("PRE_NORMED") else 0
    return Cost(round(flops), round(n_bytes))


def moe_combine(
    rec: Recorder,
    batch: Batch,
    label: str,
    experts: MoeConfig,
    expert_out: Tensor,
    routing: ExpertRouting,
    y: Tensor,
    *,
    shared: tuple[Tensor, Tensor] | None = None,
    residual: Tensor | None = None,
) -> None:
    """y = [residual +] Σ gate · expert_out over a row's assignments [+ sigmoid(logit) · shared].

    expert_out is (assignments, width). `shared`: output of the shared expert (rows, width), and
    logits whose column `experts.n_experts` is its gate.
    """
    for tensor in (expert_out, *((residual,) if residual else ()), *(shared[:1] if shared else ())):
        expect_shape(tensor, (y.shape[-1],), label)
    expect_routing(routing, experts, label)
    shared_out, logits = shared or (None, None)
    rec.dispatch(
        label,
        "moe_combine",
        {
            "step": batch.step,
            "expert_out": expert_out,
            "gates": routing.gates,
            "logits": logits,
            "shared_out": shared_out,
            "residual": residual,
            "y": y,
        },
        (n_workgroups(y.shape[-1] // 4, WORKGROUP), batch.n_rows, 1),
        {
            "EXPERTS_PER_TOKEN": experts.experts_per_token,
            "STRIDE": y.shape[-1],
            "LOGITS_STRIDE": logits.shape[-1] if logits else 0,
            "GATE": experts.n_experts,
            "SHARED": shared is not None,
            "RESIDUAL": residual is not None,
            "WORKGROUP": WORKGROUP,
        },
    )


@cost_of_kernel("moe_combine")
def moe_combine_cost(dispatch: Dispatch, size: StepSize) -> Cost:
    """Operations: 2N per assignment, + 2rN with a shared expert, + rN with a residual. Bytes:
    outputs and gates of the assignments, shared output, residual, y."""
    c = constants_of(dispatch)
    experts_per_token, width, n_rows = c["EXPERTS_PER_TOKEN"], c["STRIDE"], size.n_rows
    flops = width * (2 * experts_per_token + 2 * c["SHARED"] + c["RESIDUAL"])
    numbers = width * (1 + experts_per_token + c["SHARED"] + c["RESIDUAL"]) + experts_per_token
    return Cost(n_rows * flops, 4 * n_rows * numbers)
