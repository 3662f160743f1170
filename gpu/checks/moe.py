"""Checks of the ops of mixtures of experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from gpu import ops
from gpu.checkpoint.matrix import ExpertStack
from gpu.checkpoint.packing import FORMATS, pack, row_words, unpack
from gpu.checks.matmul import activated_bound, minima_share
from gpu.checks.quantize_activations import quantized_numbers
from gpu.checks.rig import (
    GUARD_ROWS,
    POISON,
    ROUNDING,
    Array,
    Rig,
    check_each,
    f64,
    normal,
    plain_rows,
)
from gpu.config import MoeConfig
from gpu.ops.moe_routing import max_tiles, tile_assignments
from gpu.reference import moe as reference
from gpu.reference.ops import Epilogue, moe_expert_norms, rms_norm
from gpu.step import Row
from gpu.webgpu.plan import Recorder

EPS = 1e-5


# ---- routing ---------------------------------------------------------------------------------


def moe_topk(
    rig: Rig, logits: Array, of: MoeConfig, keeps: Array | None = None
) -> tuple[Array, Array]:
    """Return the device's experts and gates of logits (n_rows, n_experts), each (n_rows,
    experts_per_token). `keeps`: that of each slot, if any; row i has slot i modulo their number."""
    n_rows, each = len(logits), of.experts_per_token
    slots = range(1) if keeps is None else range(len(keeps))
    rows = [Row(slots[i % len(slots)], i, 0) for i in range(n_rows)]
    batch = rig.batch(rows, bucket=n_rows + 1)
    given = np.concatenate([logits, np.full((n_rows, 2), np.nan, np.float32)], axis=1)
    ids, gates = rig.output(n_rows, each, each), rig.output(n_rows, each, each)
    routing = ops.ExpertRouting(replace(ids.tensor, dtype="u32"), gates.tensor)
    table = None if keeps is None else rig.memory.upload("keeps", keeps)
    rig.run_op(ops.moe_topk, batch, "topk", of, rig.input("logits", given), routing, table)
    return ids.read().view(np.uint32), gates.read()


def check_moe_topk(
    rig: Rig, n: int, experts_per_token: int, norm_topk_prob: bool, n_off: int | None = None
) -> None:
    """Compare with the twin. `n_off`: experts that are switched off in each of three slots but the
    first, the most likely ones and one that is NaN."""
    of = MoeConfig(n, experts_per_token, 8, norm_topk_prob)
    logits = normal(np.random.default_rng(n), 7, n) * 3
    keeps, of_rows = None, None
    if n_off is not None:
        keeps, slots = np.ones((3, n), np.float32), np.arange(7) % 3
        for slot in (1, 2):
            dropped = np.argsort(-logits[slot])[:n_off]
            keeps[slot, dropped] = 0
            logits[np.ix_(slots == slot, dropped[:1])] = np.nan
        of_rows = f64(keeps)[slots]
    ids, gates = moe_topk(rig, logits, of, keeps)
    want_ids, want = reference.moe_topk(f64(logits), experts_per_token, norm_topk_prob, of_rows)
    rig.expect(f"the experts of {of} are wrong", np.array_equal(ids, want_ids))
    size = (np.nanmax(np.abs(logits)) + n) * 4 * ROUNDING  # of exp's argument; of a sum of n
    rig.compare("moe_topk", of, gates, want, size * want)


def check_moe_permute(rig: Rig, rows: int, bucket: int, n: int, experts_per_token: int) -> None:
    of = MoeConfig(n, experts_per_token, 8, norm_topk_prob=True)
    chosen = random_experts(np.random.default_rng(rows), rows, of)
    tile = tile_assignments(rig.device.tuning, of, bucket)
    n_tiles, batch = max_tiles(of, bucket, tile), rig.batch(plain_rows(rows), bucket=bucket)
    order, tiles = rig.output(rows * experts_per_token, 1, 1), rig.output(n_tiles, 4, 4)
    written = (replace(out.tensor, dtype="u32") for out in (order, tiles))
    permutation, routing = ops.ExpertPermutation(*written), _routing(rig, chosen)
    rig.run_op(ops.moe_permute, batch, "permute", of, routing, permutation)
    want_order, want = reference.moe_permute(chosen.astype(np.int64), tile)
    got_order, got = order.read().view("u4")[:, 0], tiles.read().view("u4")
    case = f"{rows} rows, {n} experts"
    rig.expect(f"the order of {case} is wrong", np.array_equal(got_order, want_order))
    rig.expect(f"the tiles of {case} are wrong", np.array_equal(got[: len(want), :3], want))
    empty = not got[len(want) :].any() and not got[:, 3].any()
    rig.expect(f"the empty tiles of {case} are not zero", empty)


def random_experts(rng: np.random.Generator, rows: int, of: MoeConfig) -> Array:
    """Return random choices (rows, experts_per_token): experts differ between rows; some are chosen
    often, some never."""
    liking = rng.permutation(np.geomspace(1, 0.01, of.n_experts))
    noise = rng.gumbel(size=(rows, of.n_experts)) + np.log(liking)
    chosen: Array = np.argsort(-noise, axis=1)[:, : of.experts_per_token].astype(np.uint32)
    return chosen


def _routing(rig: Rig, chosen: Array, gates: Array | None = None) -> ops.ExpertRouting:
    """Upload a routing as `moe_topk` writes it; rows past the last are poisoned."""
    ids = np.full((len(chosen) + GUARD_ROWS, chosen.shape[1]), POISON, np.uint32)
    ids[: len(chosen)] = chosen
    found = ids.view(np.float32).copy()
    if gates is not None:
        found[: len(chosen)] = gates
    return ops.ExpertRouting(rig.memory.upload("ids", ids), rig.memory.upload("gates", found))


# ---- moe_matmul ------------------------------------------------------------------------------


SIX = MoeConfig(6, 2, 8, norm_topk_prob=True)


@dataclass(frozen=True, slots=True)
class ExpertsCase:
    """A matmul of `rows` rows in a plan for `bucket`. `shards`: about how many pieces the weights
    are cut into; `places`: where experts lie, None for in order."""

    k: int
    n: int
    dtype: str = "f32"
    of: MoeConfig = SIX
    rows: int = 3
    bucket: int = 4
    norm: bool = False
    bias: bool = False
    gated: bool = False
    per_assignment: bool = False
    shards: int = 1
    places: tuple[int, ...] | None = None

    def __str__(self) -> str:
        flags = [f for f in ("norm", "bias", "gated", "per_assignment") if getattr(self, f)]
        return f"{self.dtype}-{self.rows}of{self.bucket}x{self.k}x{self.n}-{flags}"


@dataclass(frozen=True)
class ExpertsNumbers:
    """Random numbers of a case: x (n_rows or n_assignments, k), weights (n_experts, n, k), bias
    (n_assignments, n), chosen (n_rows, experts_per_token)."""

    x: Array
    weights: Array
    dtype: str
    gain: Array
    bias: Array
    chosen: Array

    @classmethod
    def of(cls, case: ExpertsCase) -> ExpertsNumbers:
        rng, n_assignments = np.random.default_rng(5), case.rows * case.of.experts_per_token
        return cls(
            x=normal(rng, n_assignments if case.per_assignment else case.rows, case.k),
            weights=normal(rng, case.of.n_experts, case.n, case.k) / np.float32(np.sqrt(case.k)),
            dtype=case.dtype,
            gain=rng.uniform(0.5, 1.5, case.k).astype(np.float32),
            chosen=random_experts(rng, case.rows, case.of),
            bias=normal(rng, n_assignments, case.n),
        )

    @cached_property
    def stored(self) -> Array:
        """The weights after packing and unpacking, in double precision."""
        k = self.weights.shape[2]
        packed = pack(self.dtype, self.weights.reshape(-1, k))
        return unpack(self.dtype, packed, k).reshape(self.weights.shape).astype(np.float64)


def check_moe_matmul(rig: Rig, case: ExpertsCase) -> None:
    """Compare products of assignments with the twin; see `matmul.check_matmul`."""
    numbers = ExpertsNumbers.of(case)
    got = run_experts(rig, case, numbers)
    if rig.quantized_rows is None:
        rig.compare(f"moe_matmul.{case.dtype}", case, got, *expected_experts(case, numbers))
        return
    x = quantized_numbers(rig, case.dtype, len(numbers.x), case.k)
    want, bound = expected_experts(replace(case, norm=False), replace(numbers, x=x))
    bound = bound * minima_share(case.dtype, numbers.weights.reshape(-1, case.k))
    rig.compare(f"moe_matmul.bytes.{case.dtype}", case, got, want, bound)


def run_experts(rig: Rig, case: ExpertsCase, numbers: ExpertsNumbers) -> Array:
    """Return the device's result."""
    batch, of = rig.batch(plain_rows(case.rows), bucket=case.bucket), case.of
    stack = _stack(rig, case, numbers.weights)
    places = np.arange(of.n_experts) if case.places is None else np.array(case.places)
    slots = rig.memory.upload("slots", places.astype(np.uint32))
    y = rig.output(case.rows * of.experts_per_token, case.n // 2 if case.gated else case.n)
    routing, permutation = _routing(rig, numbers.chosen), ops.ExpertPermutation.make(of, rig.memory)
    x, norm = rig.input("x", numbers.x), ops.Norm(rig.gain(numbers.gain), EPS)
    bias = rig.input("bias", numbers.bias) if case.bias else None

    def record(rec: Recorder) -> None:
        if ops.is_permuted(of, batch.n_rows):
            ops.moe_permute(rec, batch, "permute", of, routing, permutation)
        ops.moe_matmul(
            rec, batch, "experts", of, x, stack, slots, routing, permutation, y.tensor,
            norm=norm if case.norm else None,
            bias=bias,
            activation="silu" if case.gated else None,
            gated=case.gated,
            per_assignment=case.per_assignment,
        )  # fmt: skip

    rig.run(record)
    return y.read()


def _stack(rig: Rig, case: ExpertsCase, weights: Array) -> ExpertStack:
    """Upload the experts as a loader does, in the order of `case.places`; gate and up are tensors
    of their own."""
    n, each = case.n, 2 if case.gated else 1
    in_places = weights if case.places is None else weights[np.argsort(case.places)]
    limit = -(-case.of.n_experts // case.shards) * n * 4 * row_words(case.dtype, case.k)
    arrays = {f"{e}.{i}": w[i::each] for e, w in enumerate(in_places) for i in range(each)}
    names = [tuple(f"{e}.{i}" for i in range(each)) for e in range(len(weights))]
    loader = rig.loader(arrays, case.dtype, limit if case.shards > 1 else None)
    stack = loader.experts("w", names, n // each, case.k)
    rig.expect("the experts are cut into shards", len(stack.matrix.shards) >= case.shards)
    return stack


def expected_experts(case: ExpertsCase, numbers: ExpertsNumbers) -> tuple[Array, Array]:
    """Return the float64 result and the bound of float32, as for `matmul.expected_matmul`."""
    x, gain, bias = f64(numbers.x, numbers.gain, numbers.bias)
    chosen = numbers.chosen.astype(np.int64)
    rows = x if case.per_assignment else np.repeat(x, case.of.experts_per_token, axis=0)
    if case.norm:
        rows = rms_norm(rows, gain, EPS)
    before = reference.moe_matmul(rows, numbers.stored, chosen, per_assignment=True)
    sizes = np.linalg.norm(numbers.stored, axis=2)[chosen.reshape(-1)]
    bound = 8 * ROUNDING * np.linalg.norm(rows, axis=1)[:, None] * sizes
    if case.norm:
        bound += (8 + np.sqrt(case.k)) * ROUNDING * np.abs(before)
    if case.bias:
        before = before + bias
        bound += 2 * ROUNDING * (np.abs(before) + np.abs(bias))
    if not case.gated:
        return before, bound
    want = Epilogue("silu", gated=True).apply(before)
    return want, activated_bound("silu", before, bound, gated=True)


# ---- outputs of experts ----------------------------------------------------------------------


def check_moe_combine(rig: Rig, width: int, has_shared: bool, has_residual: bool) -> None:
    """Compare weighted sums of experts with the twin, with the gated shared expert and without."""
    of, rows = MoeConfig(7, 3, 8, norm_topk_prob=False), 5
    rng = np.random.default_rng(width)
    parts, shared, residual = (normal(rng, n, width) for n in (rows * 3, rows, rows))
    gates = rng.uniform(0, 1, (rows, 3)).astype(np.float32)
    logits = np.full((rows, 8), np.nan, np.float32)
    logits[:, 7] = [-90.0, -2.0, 0.0, 3.0, 90.0]
    batch, y = rig.batch(plain_rows(rows), bucket=8), rig.output(rows, width)
    routing = _routing(rig, np.zeros((rows, 3), np.uint32), gates)
    rig.run_op(
        ops.moe_combine, batch, "combine", of, rig.input("parts", parts), routing, y.tensor,
        shared=(rig.input("shared", shared), rig.input("logits", logits)) if has_shared else None,
        residual=rig.input("residual", residual) if has_residual else None,
    )  # fmt: skip
    parts_, gates_, shared_, logit, before = f64(parts, gates, shared, logits[:, 7], residual)
    want = reference.moe_combine(
        parts_, gates_,
        shared=shared_ if has_shared else None,
        logit=logit if has_shared else None,
        residual=before if has_residual else None,
    )  # fmt: skip
    size = np.einsum("rk,rkn->rn", gates_, np.abs(parts_).reshape(rows, 3, -1))
    bound = ROUNDING * (8 * size + 8 * np.abs(shared_) + 2 * np.abs(before))
    rig.compare("moe_combine", (width, has_shared, has_residual), y.read(), want, bound)


def check_moe_expert_norms(rig: Rig, rows: int, bucket: int, each: int, k: int) -> None:
    parts = normal(np.random.default_rng(1000 * rows + k), rows * each, k)
    of = MoeConfig(9, each, 8, norm_topk_prob=True)
    norms, batch = rig.output(rows, each, each), rig.batch(plain_rows(rows), bucket=bucket)
    rig.run_op(ops.moe_expert_norms, batch, "norms", of, rig.input("parts", parts), norms.tensor)
    want = moe_expert_norms(f64(parts)).reshape(rows, each)
    bound = (4 + np.sqrt(k)) * ROUNDING * want
    rig.compare("moe_expert_norms", f"{rows} rows of {k}", norms.read(), want, bound)


# ---- of a report -----------------------------------------------------------------------------

EXPERTS = tuple(
    ExpertsCase(k, n, rows=rows, bucket=bucket, norm=gated, gated=gated, per_assignment=not gated)
    for rows, bucket in ((1, 1), (61, 64))
    for k, n, gated in ((70, 38, True), (33, 19, False))
)
"""Few rows, whose assignments are computed one by one, and many, which are grouped by expert; both
matrices of an expert."""

CHECKS: dict[str, Callable[[Rig], None]] = {
    "moe_topk": check_each(
        check_moe_topk,
        *(
            (n, each, norm_topk_prob, n_off)
            for n, each, n_off in ((1, 1, None), (5, 5, 0), (60, 4, 7), (1024, 32, None))
            for norm_topk_prob in (False, True)
        ),
    ),
    "moe_permute": check_each(
        check_moe_permute, (3, 4, 2, 1), (77, 128, 60, 4), (128, 128, 300, 8)
    ),
    **{
        f"moe_matmul {dtype}": check_each(
            check_moe_matmul, *(replace(case, dtype=dtype) for case in EXPERTS)
        )
        for dtype in FORMATS
    },
    "moe_combine": check_each(check_moe_combine, *((width, True, True) for width in (32, 70, 300))),
    "moe_expert_norms": check_each(check_moe_expert_norms, (1, 1, 1, 37), (7, 8, 3, 1000)),
}
