"""Mixtures of experts (Shazeer et al. 2017): which experts a row is given to, their products, and
the sum of what they give. Nothing of it is known to the host.

A pair is a row and one of the experts it was given to: pair = row · per_token + k, experts in the
order of their gates. A layer records

    choose_experts   exact top-k of the router's logits
    group_pairs      pairs in the order of their experts, in tiles that share one; left out for
                     steps of few rows, where hardly two rows share an expert: each pair is a tile
    experts          gate and up of every pair; again, down of every pair
    combine_experts  what a row's pairs give, weighed and added up

The bits of a row do not depend on the rows beside it: a pair's product is that of `matmul`, whose
sums are cut by the matrix alone, and a row's pairs are added up in their own order.

Where weights lie. The id of an expert goes through a table of its layer before a weight is read:
`slots[expert]` (n_experts,) u32 is the place of that expert's rows in an `ExpertStack`, counted in
experts. With all of them resident it is 0, 1, 2, …; a stack with fewer places than experts works as
well, as long as every expert that a step chooses has its weights in the place that the table names
when `experts` runs. Only `experts` reads the table, so it may be written between a step's
`choose_experts` and its `experts`. A place that is outside of the stack is not computed, and what
the pair gave before is left standing: such steps must not be used.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpu.checkpoint.matrix import ExpertStack
from gpu.config import Experts
from gpu.ops.batch import Batch, expect_shape, groups
from gpu.ops.norms import Norm
from gpu.ops.operands import operand
from gpu.ops.products import ACTIVATION_CODES
from gpu.ops.step_buffer import MAX_ROWS
from gpu.webgpu.buffers import Memory, Tensor, padded
from gpu.webgpu.plan import Recorder
from gpu.webgpu.tiling import Tuning

NOWHERE = 0xFFFFFFFF
"""The place of an expert that is not there."""
WORKGROUP = 64


@dataclass(frozen=True, slots=True)
class Routing:
    """Which experts rows are given to, largest gate first: chosen (rows, per_token) u32, and gates
    (rows, per_token), which what they give is multiplied by."""

    chosen: Tensor
    gates: Tensor

    @classmethod
    def make(cls, experts: Experts, memory: Memory) -> Routing:
        shape = (MAX_ROWS, experts.per_token)
        return cls(
            memory.zeros("experts.chosen", shape, "u32"), memory.zeros("experts.gates", shape)
        )


@dataclass(frozen=True, slots=True)
class Grouping:
    """Pairs in the order of their experts: order (pairs,) u32, tiles (≥ `most_tiles`, 4) u32 of
    (expert, first, end, 0)."""

    order: Tensor
    tiles: Tensor

    @classmethod
    def make(cls, experts: Experts, memory: Memory) -> Grouping:
        """Room for the largest step, however its pairs are cut."""
        n_pairs = MAX_ROWS * experts.per_token
        return cls(
            memory.zeros("experts.order", (n_pairs,), "u32"),
            memory.zeros("experts.tiles", (n_pairs, 4), "u32"),
        )


def is_grouped(experts: Experts, n_rows: int) -> bool:
    """Are tiles of several pairs worth looking for? From about where rows share experts."""
    return n_rows * experts.per_token > experts.n


def tile_pairs(tuning: Tuning, experts: Experts, n_rows: int) -> int:
    """Pairs of a tile: about as many as an expert gets, were all chosen alike."""
    if not is_grouped(experts, n_rows):
        return 1
    return tuning.tile(n_rows * experts.per_token // experts.n, 1, 1).m


def most_tiles(experts: Experts, n_rows: int, tile: int) -> int:
    """Tiles of `tile` pairs that a step can have: each expert may end with one that is not full."""
    n_pairs = n_rows * experts.per_token
    return (n_pairs + min(experts.n, n_pairs) * (tile - 1)) // tile


def choose_experts(
    rec: Recorder, batch: Batch, label: str, experts: Experts, logits: Tensor, routing: Routing
) -> None:
    """Give every row to the `per_token` experts of its largest logits (rows, ≥ n), the largest
    first, of equal ones the smaller id (torch.topk leaves that open). Gates are those of a
    softmax over all experts or, `normalised`, over those chosen."""
    if logits.shape[-1] < experts.n:
        raise ValueError(f"{label}: {logits!r} has no room for {experts.n} experts")
    _expect_routing(routing, experts, label)
    rec.dispatch(
        label,
        "choose_experts",
        {
            "step": batch.step,
            "logits": logits,
            "chosen": routing.chosen,
            "gates": routing.gates,
        },
        (batch.n_rows, 1, 1),
        {
            "N_EXPERTS": experts.n,
            "PER_TOKEN": experts.per_token,
            "STRIDE": logits.shape[-1],
            "NORMALISED": experts.normalised,
        },
    )


def group_pairs(
    rec: Recorder,
    batch: Batch,
    label: str,
    experts: Experts,
    routing: Routing,
    grouping: Grouping,
) -> None:
    """Order the pairs of a step by expert and cut them into the tiles that `experts` takes."""
    _expect_routing(routing, experts, label)
    tile = tile_pairs(rec.device.tuning, experts, batch.n_rows)
    rec.dispatch(
        label,
        "group_pairs",
        {
            "step": batch.step,
            "chosen": routing.chosen,
            "order": grouping.order,
            "tiles": grouping.tiles,
        },
        (1, 1, 1),
        {
            "N_EXPERTS": experts.n,
            "PER_TOKEN": experts.per_token,
            "TILE": tile,
            "N_TILES": most_tiles(experts, batch.n_rows, tile),
        },
    )


def experts(
    rec: Recorder,
    batch: Batch,
    label: str,
    of: Experts,
    x: Tensor,
    weight: ExpertStack,
    slots: Tensor,
    routing: Routing,
    grouping: Grouping,
    y: Tensor,
    *,
    norm: Norm | None = None,
    bias: Tensor | None = None,
    activation: str | None = None,
    gated: bool = False,
    of_pairs: bool = False,
) -> None:
    """y (pairs, …) = act([norm](x) · weightᵀ [+ bias]) with the weight of each pair's expert, a
    dispatch for each shard. x has a row for each row of the step or, `of_pairs`, for each pair;
    `bias` has one for each pair (pairs, ≥ weight.n). Steps that `is_grouped` says so of need
    `group_pairs` before. `slots`: see the head of this file; the others as in `matmul`."""
    matrix = weight.matrix
    expect_shape(y, (padded(weight.n // 2 if gated else weight.n),), label)
    expect_shape(slots, (of.n,), label)
    _expect_routing(routing, of, label)
    tuning, n_rows, grouped = rec.device.tuning, batch.n_rows, is_grouped(of, batch.n_rows)
    m = tile_pairs(tuning, of, n_rows)
    rows = operand(rec, batch, label, x, matrix, norm, each=of.per_token if of_pairs else 1)
    for shard in matrix.shards:
        tile = tuning.tile(m, weight.n, matrix.blocks)
        rec.dispatch(
            label,
            "experts",
            {
                "step": batch.step,
                **rows.tensors,
                "weight": shard.tensor,
                "pairs": grouping.order if grouped else routing.chosen,
                "bias": bias or batch.unread,
                "tiles": grouping.tiles if grouped else batch.unread,
                "slots": slots,
                "y": y,
            },
            (groups(weight.n, tile.n * tile.columns), most_tiles(of, n_rows, m), 1),
            {
                "K": matrix.k,
                "N": weight.n,
                "BLOCKS": matrix.blocks,
                "ABREAST": matrix.abreast,
                **rows.constants,
                "PER_TOKEN": of.per_token,
                "X_PAIRS": 1 if of_pairs else of.per_token,
                "FIRST_SLOT": shard.first // weight.n,
                "N_SLOTS": shard.n_rows // weight.n,
                "Y_STRIDE": y.shape[-1],
                "BIAS": bias is not None,
                "BIAS_STRIDE": bias.shape[-1] if bias else 0,
                "ACTIVATION": ACTIVATION_CODES[activation] if activation else 0,
                "GATED": gated,
                "GROUPED": grouped,
            },
            tile.prelude,
            {**rows.lib, "x_tile": tile.x_tile},
        )


def combine_experts(
    rec: Recorder,
    batch: Batch,
    label: str,
    experts: Experts,
    parts: Tensor,
    routing: Routing,
    y: Tensor,
    *,
    shared: tuple[Tensor, Tensor] | None = None,
    residual: Tensor | None = None,
) -> None:
    """y = [residual +] Σ gate · part over the pairs of a row [+ sigmoid(logit) · shared]; parts
    (pairs, width). `shared`: what the expert of every row gives (rows, width), and logits of which
    column `experts.n` is that of its gate."""
    for tensor in (parts, *((residual,) if residual else ()), *(shared[:1] if shared else ())):
        expect_shape(tensor, (y.shape[-1],), label)
    _expect_routing(routing, experts, label)
    given, logits = shared or (batch.unread, batch.unread)
    rec.dispatch(
        label,
        "combine_experts",
        {
            "step": batch.step,
            "parts": parts,
            "gates": routing.gates,
            "logits": logits,
            "shared_part": given,
            "residual": residual or batch.unread,
            "y": y,
        },
        (groups(y.shape[-1] // 4, WORKGROUP), batch.n_rows, 1),
        {
            "PER_TOKEN": experts.per_token,
            "STRIDE": y.shape[-1],
            "LOGITS_STRIDE": logits.shape[-1],
            "GATE": experts.n,
            "SHARED": shared is not None,
            "RESIDUAL": residual is not None,
            "WORKGROUP": WORKGROUP,
        },
    )


def _expect_routing(routing: Routing, experts: Experts, label: str) -> None:
    for tensor in (routing.chosen, routing.gates):
        expect_shape(tensor, (experts.per_token,), label)
