"""What a dispatch costs: floating-point operations and bytes, by formula from its shapes.

Both are those of the mathematics, whatever the kernel does twice. Every byte of memory that is
needed counts once, read or written; a multiply-add is two operations; `exp`, a division and a
comparison are one each, an activation four, a soft cap five; turning what is stored into a number
is none, nor is the reverse. For r rows of one sequence after c tokens that are in the cache
already, K inputs, N outputs, heads of d numbers:

    embed            0                                  r rows of the table; x written
    matmul, qkv      r · 2NK                            weights as stored; x, y
      norm           + 4rK                              gain
      after parts    + rN                               scales
      bias, residual + rN each                          themselves
      activation     + 4rN
      gated          + 5rN / 2                          half as many y
      cap            + 5rN
      qkv            + 3r for each number turned        rotations; new keys and values
      of bytes                                          rows as `to_bytes` leaves them
    to_bytes         4rK                                x; bytes and grids of its rows
      norm           + 4rK                              gain
    norm_parts       3rK                                x, gain; y, scales
    attention        Σ keys seen · heads · (4d + 5)     keys, values of c + r tokens; block table;
                     + r · heads · d                    q, out
      cap            + 5 for each score
    attention_merge  heads · d · (3 splits − 2) a row   what the splits left; out
    norm             4rN, LayerNorm 7rN                 x, y, gain
      bias, residual + rN each                          themselves
    cache_heads      0                                  new keys and values; what is stored of them
      rotated        + log₂(span) + 2 a number          q read and written
    unrotate_heads   log₂(span) + 2 a number            x read and written
    place_heads      4 a number of queries and keys     projected heads; gains; q; new keys, values
                     + 3 for each number turned         rotations
    choose_experts   4 a logit                          logits; ids and gates of the pairs
    group_pairs      0                                  ids; order and tiles of the pairs
    experts          pairs · 2NK                        weights of the experts used, see below;
                                                        x; y of the pairs
      norm, after parts, bias, gated
                     as of matmul: of rows, of pairs, of pairs, of pairs
    combine_experts  2N a pair                          parts of the pairs; gates; y
      shared         + 2rN                              the shared part
      residual       + rN                               itself
    add_positions    rN                                 r rows of the table; x read and written
    layer_stats      16 a number and layer              both arenas
    sample_keys      8 a token of the vocabulary        logits, seen; keys written
    sample           4 a strip of the vocabulary        summaries of the strips; results

Row i of r sees c + i + 1 keys, or the layer's window of them. A sample reads one row of x. What
`sample` walks over beside the summaries depends on the logits and is left out. Of a matrix in
shards, what they share counts with the first. A row has a pair for each of the k experts of n that
it is given to. Which these are is not known before a step has run: r rows are taken to use n · (1 −
(1 − k/n)^r) experts, as if each row chose by lot; of one row these are k.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpu.errors import InvalidRequest
from gpu.kv.formats import STORAGES, rotation_span
from gpu.ops.statistics import STATS_PER_LAYER
from gpu.runner import RunnerLimits
from gpu.webgpu.plan import Dispatch, Plan

NORM_FLOPS = 4
"""A number: square, add, multiply by the gain and by the scale."""
PARTS_FLOPS = 3
"""A number: square, add, multiply by the gain."""
GATE_FLOPS = 5
"""A pair: v / (1 + exp(−v)), times the other."""
ACTIVATION_FLOPS = 4
CAP_FLOPS = 5
ROUTE_FLOPS = 4
"""A logit: compare with the largest, subtract it, exp, add."""
LAYER_NORM_FLOPS = 7
"""A number: two differences, two sums, a square, the gain, the scale."""
BYTE_FLOPS = 4
"""A number: compare with the largest, scale, round, add to the sum."""
TURN_FLOPS = 3
SOFTMAX_FLOPS = 5
"""A score: scale, compare with the maximum, subtract it, exp, add."""
ENTROPY_FLOPS = 2
STATS_FLOPS = 16
"""A number: two differences, four squares added up."""
KEY_FLOPS = 8
"""A token: penalty, temperature, and for raw and scaled logits a difference, exp and sum."""
STRIP_FLOPS = 4
STATE_BYTES = 12
SUMMARY_BYTES = 16
"""Of a strip in shaders/lib/keys.wgsl."""


@dataclass(frozen=True, slots=True)
class Cost:
    flops: int
    n_bytes: int

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.flops + other.flops, self.n_bytes + other.n_bytes)


@dataclass(frozen=True, slots=True)
class StepSize:
    """`n_rows` tokens of one sequence after `context` others, and how many of them are sampled."""

    n_rows: int
    n_samples: int
    context: int

    @classmethod
    def checked(cls, n_rows: int, context: int, limits: RunnerLimits) -> StepSize:
        """With one sample. Raises InvalidRequest for what no step can be."""
        if not 1 <= n_rows <= limits.max_rows:
            raise InvalidRequest(f"n_rows is {n_rows}, expected 1 to {limits.max_rows}", "n_rows")
        most = limits.context - n_rows
        if not 0 <= context <= most:
            raise InvalidRequest(
                f"context is {context}, expected 0 to {most}: it is what comes before the "
                f"{n_rows} rows, and {limits.context} tokens fit",
                "context",
            )
        return cls(n_rows, 1, context)

    @property
    def n_keys(self) -> int:
        """Tokens whose keys are read."""
        return self.context + self.n_rows

    def n_seen(self, window: int = 0) -> int:
        """Keys that the rows see, added up; `window` of them at most, 0: all."""
        seen = (self.context + i + 1 for i in range(self.n_rows))
        return sum(min(n, window) if window else n for n in seen)

    def n_cached(self, window: int = 0) -> int:
        """Keys that any of the rows sees."""
        return min(self.n_keys, self.n_rows + window - 1) if window else self.n_keys

    def n_splits(self, split: int) -> int:
        """Splits of `split` keys that the rows see, added up."""
        return sum((self.context + i) // split + 1 for i in range(self.n_rows))


def cost_of(dispatch: Dispatch, size: StepSize) -> Cost | None:
    """Of one dispatch of a plan for a step of `size`; None for an op without a formula."""
    formula = COSTS.get(dispatch.kernel.name)
    return formula(dispatch, size) if formula else None


def plan_cost(plan: Plan, size: StepSize) -> Cost:
    """Of all dispatches that have a formula."""
    costs = (cost_of(dispatch, size) for dispatch in plan.dispatches)
    return sum((cost for cost in costs if cost), Cost(0, 0))


# ---- the formulas ----------------------------------------------------------------------------


def _constants(dispatch: Dispatch) -> dict[str, int]:
    return {name: int(value) for name, value in dispatch.kernel.constants.items()}


def _embed(dispatch: Dispatch, size: StepSize) -> Cost:
    c, weight = _constants(dispatch), dispatch.tensors["weight"]
    if c["FIRST"]:
        return Cost(0, 0)
    width = dispatch.tensors["x"].shape[-1]
    return Cost(0, size.n_rows * (weight.n_bytes // c["COUNT"] + 4 * width))


def _product(dispatch: Dispatch, n_rows: int) -> Cost:
    """Of x · weightᵀ with its norm and bias, without the result."""
    c = _constants(dispatch)
    k, n = c["K"], c["N"]
    cost = Cost(n_rows * 2 * n * k, dispatch.tensors["weight"].n_bytes)
    if c["FIRST"] == 0:
        cost += Cost(0, n_rows * _row_bytes(dispatch))
    if c.get("NORM") and c["FIRST"] == 0:
        cost += Cost(n_rows * NORM_FLOPS * k, 4 * k)
    if c.get("SCALED"):
        cost += Cost(n_rows * n, 0 if c["FIRST"] else 4 * n_rows)
    if c["BIAS"]:
        cost += Cost(n_rows * n, 4 * n * (n_rows if c["BIAS_STRIDE"] else 1))
    return cost


def _row_bytes(dispatch: Dispatch) -> int:
    """Of what a product is given for a row."""
    x = dispatch.tensors["x"]
    return 4 * (x.shape[-1] if x.dtype == "u32" else _constants(dispatch)["K"])


def _to_bytes(dispatch: Dispatch, size: StepSize) -> Cost:
    c = _constants(dispatch)
    n_rows = size.n_rows * c["EACH"]
    written = 4 * dispatch.tensors["y"].shape[-1]
    cost = Cost(n_rows * BYTE_FLOPS * c["K"], n_rows * (4 * c["K"] + written))
    return cost + Cost(n_rows * NORM_FLOPS * c["K"], 4 * c["K"]) if c["NORM"] else cost


def _norm_parts(dispatch: Dispatch, size: StepSize) -> Cost:
    k = _constants(dispatch)["K"]
    return Cost(size.n_rows * PARTS_FLOPS * k, 4 * (2 * size.n_rows * k + k + size.n_rows))


def _matmul(dispatch: Dispatch, size: StepSize) -> Cost:
    c, constants = _constants(dispatch), dispatch.kernel.constants
    n_rows = size.n_samples if c["GATHER"] else size.n_rows
    n = c["N"] // 2 if c["GATED"] else c["N"]
    cost = _product(dispatch, n_rows) + Cost(0, n_rows * 4 * n)
    if c["GATED"]:
        cost += Cost(n_rows * GATE_FLOPS * n, 0)
    elif c["ACTIVATION"]:
        cost += Cost(n_rows * ACTIVATION_FLOPS * n, 0)
    if constants["CAP"]:
        cost += Cost(n_rows * CAP_FLOPS * n, 0)
    if c["RESIDUAL"]:
        cost += Cost(n_rows * n, n_rows * 4 * n)
    return cost


def _qkv(dispatch: Dispatch, size: StepSize) -> Cost:
    c, keys = _constants(dispatch), dispatch.tensors["k_pool"]
    q_end = c["N_HEADS"] * c["HEAD_DIM"]
    k_end = q_end + c["N_KV_HEADS"] * c["HEAD_DIM"]
    first, last = c["FIRST"], c["FIRST"] + c["N"]
    n_turned = max(0, min(last, k_end) - first) * c["ROTARY_DIM"] // c["HEAD_DIM"]
    n_queries = max(0, min(last, q_end) - first)
    d = c["HEAD_DIM"]
    row_bytes = 4 * n_queries + STORAGES[keys.dtype].head_bytes(d) * (c["N"] - n_queries) // d
    rotation_bytes = 0 if first else 4 * c["ROTARY_DIM"]
    turned = Cost(size.n_rows * TURN_FLOPS * n_turned, size.n_rows * (rotation_bytes + row_bytes))
    return _product(dispatch, size.n_rows) + turned


def _attention(dispatch: Dispatch, size: StepSize) -> Cost:
    c, keys = _constants(dispatch), dispatch.tensors["k_pool"]
    heads, d = c["N_HEADS"], keys.shape[-1]
    score = 4 * d + SOFTMAX_FLOPS + (ENTROPY_FLOPS if c["CAPTURE"] else 0)
    score += CAP_FLOPS if dispatch.kernel.constants["CAP"] else 0
    flops, n_keys = size.n_seen(c["WINDOW"]) * heads * score, size.n_cached(c["WINDOW"])
    cached = n_keys * c["N_KV_HEADS"] * _pair_bytes(dispatch)
    n_bytes = cached + 4 * -(-n_keys // c["BLOCK_TOKENS"]) + size.n_rows * 4 * heads * d
    if c["PARTIAL"]:
        return Cost(flops, n_bytes + size.n_splits(c["SPLIT"]) * heads * (4 * d + STATE_BYTES))
    entropies = size.n_rows * 4 * heads if c["CAPTURE"] else 0
    return Cost(flops + size.n_rows * heads * d, n_bytes + entropies + size.n_rows * 4 * heads * d)


def _attention_merge(dispatch: Dispatch, size: StepSize) -> Cost:
    c = _constants(dispatch)
    heads, d, n_splits = c["N_HEADS"], 4 * c["HEAD_VEC4S"], size.n_splits(c["SPLIT"])
    entropies = size.n_rows * 4 * heads if c["CAPTURE"] else 0
    return Cost(
        heads * d * (3 * n_splits - 2 * size.n_rows),
        n_splits * heads * (4 * d + STATE_BYTES) + size.n_rows * 4 * heads * d + entropies,
    )


def _norm(dispatch: Dispatch, size: StepSize) -> Cost:
    c = _constants(dispatch)
    n_rows, width = size.n_samples if c["GATHER"] else size.n_rows, c["WIDTH"]
    flops = (LAYER_NORM_FLOPS if c["CENTRED"] else NORM_FLOPS) + c["BIAS"] + c["RESIDUAL"]
    numbers = n_rows * width * (2 + c["RESIDUAL"]) + width * (1 + c["BIAS"])
    return Cost(n_rows * width * flops, 4 * numbers)


def _place_heads(dispatch: Dispatch, size: StepSize) -> Cost:
    c = _constants(dispatch)
    d, turned = 2 * c["PAIRS"], 4 * c["HALF"]
    n_normed = c["N_HEADS"] + c["N_KV_HEADS"]
    flops = n_normed * (NORM_FLOPS * d + TURN_FLOPS * turned)
    row = 4 * (2 * c["N_HEADS"] + 2 * c["N_KV_HEADS"]) * d + 4 * turned
    row += c["N_KV_HEADS"] * _pair_bytes(dispatch)
    return Cost(size.n_rows * flops, size.n_rows * row + dispatch.tensors["gains"].n_bytes)


def _choose_experts(dispatch: Dispatch, size: StepSize) -> Cost:
    c = _constants(dispatch)
    row_bytes = 4 * c["N_EXPERTS"] + 8 * c["PER_TOKEN"]
    return Cost(size.n_rows * ROUTE_FLOPS * c["N_EXPERTS"], size.n_rows * row_bytes)


def _group_pairs(dispatch: Dispatch, size: StepSize) -> Cost:
    c = _constants(dispatch)
    return Cost(0, 8 * size.n_rows * c["PER_TOKEN"] + 16 * c["N_TILES"])


def _experts(dispatch: Dispatch, size: StepSize) -> Cost:
    """Of a shard its share of the experts, as if all were chosen alike."""
    c, n_experts = _constants(dispatch), dispatch.tensors["slots"].shape[0]
    k, n = c["K"], c["N"]
    share = c["N_SLOTS"] / n_experts
    pairs = size.n_rows * c["PER_TOKEN"] * share
    unused = (1 - c["PER_TOKEN"] / n_experts) ** size.n_rows
    weights = dispatch.tensors["weight"].n_bytes * (1 - unused)
    n_y = n // 2 if c["GATED"] else n
    flops = pairs * (2 * n * k + (GATE_FLOPS * n_y if c["GATED"] else 0) + n * c["BIAS"])
    n_bytes = weights + pairs * 4 * (n_y + n * c["BIAS"])
    if c["FIRST_SLOT"] == 0:
        n_bytes += _row_bytes(dispatch) * size.n_rows * c["PER_TOKEN"] / c["X_PAIRS"]
        flops += size.n_rows * NORM_FLOPS * k if c.get("NORM") else 0
        n_bytes += 4 * k if c.get("NORM") else 4 * size.n_rows if c.get("SCALED") else 0
    flops += pairs * n if c.get("SCALED") else 0
    return Cost(round(flops), round(n_bytes))


def _combine_experts(dispatch: Dispatch, size: StepSize) -> Cost:
    c = _constants(dispatch)
    per_token, width, n_rows = c["PER_TOKEN"], c["STRIDE"], size.n_rows
    flops = width * (2 * per_token + 2 * c["SHARED"] + c["RESIDUAL"])
    numbers = width * (1 + per_token + c["SHARED"] + c["RESIDUAL"]) + per_token
    return Cost(n_rows * flops, 4 * n_rows * numbers)


def _add_positions(dispatch: Dispatch, size: StepSize) -> Cost:
    numbers = size.n_rows * _constants(dispatch)["STRIDE"]
    return Cost(numbers, 12 * numbers)


def _layer_stats(dispatch: Dispatch, size: StepSize) -> Cost:
    c = _constants(dispatch)
    n_layers, width = c["N_LAYERS"], c["X_STRIDE"]
    return Cost(
        size.n_rows * n_layers * STATS_FLOPS * width,
        size.n_rows * 4 * ((2 * n_layers + 1) * width + 1 + STATS_PER_LAYER * n_layers),
    )


def _sample_keys(dispatch: Dispatch, size: StepSize) -> Cost:
    c, row = _constants(dispatch), dispatch.tensors["keys"].shape[-1]
    n_bytes = 4 * (c["VOCAB"] + c["SEEN_WORDS"] + row)
    return Cost(size.n_samples * KEY_FLOPS * c["VOCAB"], size.n_samples * n_bytes)


def _sample(dispatch: Dispatch, size: StepSize) -> Cost:
    c, results = _constants(dispatch), dispatch.tensors["results"]
    strips = c["SLICES"] * c["SLICE_LANES"]
    n_bytes = SUMMARY_BYTES * strips + 4 * results.shape[-1]
    return Cost(size.n_samples * STRIP_FLOPS * strips, size.n_samples * n_bytes)


def _cache_heads(dispatch: Dispatch, size: StepSize) -> Cost:
    c, d = _constants(dispatch), dispatch.tensors["k_pool"].shape[-1]
    row = c["N_KV_HEADS"] * (2 * 4 * d + _pair_bytes(dispatch))
    if not c["ROTATED"]:
        return Cost(0, size.n_rows * row)
    turned = (c["N_HEADS"] + 2 * c["N_KV_HEADS"]) * d
    row += 2 * 4 * c["N_HEADS"] * d
    return Cost(size.n_rows * turned * _rotation_flops(d), size.n_rows * row)


def _unrotate_heads(dispatch: Dispatch, size: StepSize) -> Cost:
    n_heads, d = dispatch.grid[0], _constants(dispatch)["HEAD_DIM"]
    numbers = size.n_rows * n_heads * d
    return Cost(numbers * _rotation_flops(d), 2 * 4 * numbers)


def _rotation_flops(head_dim: int) -> int:
    """A number: its sign, the sums or differences it goes into, the scale."""
    return rotation_span(head_dim).bit_length() + 1


def _pair_bytes(dispatch: Dispatch) -> int:
    """Of one token's key and value of a head in the tensors of a dispatch."""
    pools = (dispatch.tensors["k_pool"], dispatch.tensors["v_pool"])
    return sum(STORAGES[pool.dtype].head_bytes(pool.shape[-1]) for pool in pools)


COSTS: dict[str, Callable[[Dispatch, StepSize], Cost]] = {
    "embed": _embed,
    "matmul": _matmul,
    "to_bytes": _to_bytes,
    "qkv": _qkv,
    "attention": _attention,
    "attention_merge": _attention_merge,
    "norm": _norm,
    "norm_parts": _norm_parts,
    "cache_heads": _cache_heads,
    "unrotate_heads": _unrotate_heads,
    "place_heads": _place_heads,
    "choose_experts": _choose_experts,
    "group_pairs": _group_pairs,
    "experts": _experts,
    "combine_experts": _combine_experts,
    "add_positions": _add_positions,
    "layer_stats": _layer_stats,
    "sample_keys": _sample_keys,
    "sample": _sample,
}
