"""Routing of a mixture of experts: top-k of the router's logits, and assignments by expert.

An assignment is a row and one of its experts: assignment = row · experts_per_token + k, experts in
the order of their gates. The host does not know them.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpu.config import MoeConfig
from gpu.ops.batch import Batch, expect_shape
from gpu.ops.cost import Cost, StepSize, constants_of, cost_of_kernel
from gpu.webgpu.buffers import Memory, Tensor
from gpu.webgpu.plan import Dispatch, Recorder
from gpu.webgpu.tiling import Tuning

TOPK_FLOPS = 4
"""Per logit: compare with the largest, subtract it, exp, add."""


@dataclass(frozen=True, slots=True)
class ExpertRouting:
    """Experts of each row, largest gate first.

    expert_ids  (rows, experts_per_token) u32
    gates       (rows, experts_per_token), the factors of the experts' outputs
    """

    expert_ids: Tensor
    gates: Tensor

    @classmethod
    def make(cls, experts: MoeConfig, memory: Memory) -> ExpertRouting:
        shape = (memory.max_rows, experts.experts_per_token)
        return cls(
            memory.zeros("experts.chosen", shape, "u32"), memory.zeros("experts.gates", shape)
        )


@dataclass(frozen=True, slots=True)
class ExpertPermutation:
    """Assignments in the order of their experts, cut into tiles of one expert each.

    order  (assignments,) u32
    tiles  (≥ `max_tiles`, 4) u32 of (expert, first, end, 0)
    """

    order: Tensor
    tiles: Tensor

    @classmethod
    def make(cls, experts: MoeConfig, memory: Memory) -> ExpertPermutation:
        """Allocate for the largest step and the smallest tiles."""
        n_assignments = memory.max_rows * experts.experts_per_token
        return cls(
            memory.zeros("experts.order", (n_assignments,), "u32"),
            memory.zeros("experts.tiles", (n_assignments, 4), "u32"),
        )


def is_permuted(experts: MoeConfig, n_rows: int) -> bool:
    """Return whether steps of `n_rows` rows sort assignments by expert: rows must share experts for
    that to pay."""
    return n_rows * experts.experts_per_token > experts.n_experts


def tile_assignments(tuning: Tuning, experts: MoeConfig, n_rows: int) -> int:
    """Return the assignments of a tile: about as many as an expert gets on average, or the rows of
    a shared tile. All matrices of a layer take the same tiles."""
    if not is_permuted(experts, n_rows):
        return 1
    average = n_rows * experts.experts_per_token // experts.n_experts
    return tuning.tile(average, 1, 1, may_share=True, of_expert=True).group[0]


def max_tiles(experts: MoeConfig, n_rows: int, tile: int) -> int:
    """Return the most tiles of `tile` assignments in a step; each expert may have one that is not
    full."""
    n_assignments = n_rows * experts.experts_per_token
    return (n_assignments + min(experts.n_experts, n_assignments) * (tile - 1)) // tile


def expect_routing(routing: ExpertRouting, experts: MoeConfig, label: str) -> None:
    """Raise ValueError unless `routing` has the shape of `experts`."""
    for tensor in (routing.expert_ids, routing.gates):
        expect_shape(tensor, (experts.experts_per_token,), label)


def moe_topk(
    rec: Recorder,
    batch: Batch,
    label: str,
    experts: MoeConfig,
    logits: Tensor,
    routing: ExpertRouting,
    keeps: Tensor | None = None,
) -> None:
    """Choose the experts of every row: the `experts_per_token` largest of logits (rows, ≥ n),
    largest first, the smaller id first among equals (torch.topk leaves that open).

    Gates are a softmax over all experts or, with `norm_topk_prob`, over the chosen ones. `keeps`
    (n_slots, n): experts whose number is 0 for a row's slot are left out, as if there were none.
    """
    if logits.shape[-1] < experts.n_experts:
        raise ValueError(
            f"{label}: expected logits of {experts.n_experts} experts, but got {logits!r}"
        )
    expect_routing(routing, experts, label)
    if keeps is not None:
        expect_shape(keeps, (experts.n_experts,), label)
    rec.dispatch(
        label,
        "moe_topk",
        {
            "step": batch.step,
            "logits": logits,
            "keeps": keeps,
            "expert_ids": routing.expert_ids,
            "gates": routing.gates,
        },
        (batch.n_rows, 1, 1),
        {
            "N_EXPERTS": experts.n_experts,
            "EXPERTS_PER_TOKEN": experts.experts_per_token,
            "STRIDE": logits.shape[-1],
            "NORM_TOPK_PROB": experts.norm_topk_prob,
            "KEEPS": keeps is not None,
        },
    )


@cost_of_kernel("moe_topk")
def moe_topk_cost(dispatch: Dispatch, size: StepSize) -> Cost:
    """Operations: 4 per logit. Bytes: logits, ids and gates of the assignments."""
    c = constants_of(dispatch)
    row_bytes = 4 * c["N_EXPERTS"] + 8 * c["EXPERTS_PER_TOKEN"]
    return Cost(size.n_rows * TOPK_FLOPS * c["N_EXPERTS"], size.n_rows * row_bytes)


def moe_permute(
    rec: Recorder,
    batch: Batch,
    label: str,
    experts: MoeConfig,
    routing: ExpertRouting,
    permutation: ExpertPermutation,
) -> None:
    """Sort the assignments of a step by expert and cut them into tiles for `moe_matmul`."""
    expect_routing(routing, experts, label)
    tile = tile_assignments(rec.device.tuning, experts, batch.n_rows)
    rec.dispatch(
        label,
        "moe_permute",
        {
            "step": batch.step,
            "expert_ids": routing.expert_ids,
            "order": permutation.order,
            "tiles": permutation.tiles,
        },
        (1, 1, 1),
        {
            "N_EXPERTS": experts.n_experts,
            "EXPERTS_PER_TOKEN": experts.experts_per_token,
            "TILE": tile,
            "N_TILES": max_tiles(experts, batch.n_rows, tile),
        },
    )


@cost_of_kernel("moe_permute")
def moe_permute_cost(dispatch: Dispatch, size: StepSize) -> Cost:
    """Bytes: expert ids, order and tiles of the assignments."""
    c = constants_of(dispatch)
    return Cost(0, 8 * size.n_rows * c["EXPERTS_PER_TOKEN"] + 16 * c["N_TILES"])
