"""The ops of mixtures of experts against their float64 twins."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from gpu import ops
from gpu.checkpoint.matrix import ExpertStack
from gpu.checkpoint.packing import FORMATS, pack, row_words, unpack
from gpu.checkpoint.weights import WeightLoader
from gpu.config import MoeConfig
from gpu.ops.moe_routing import max_tiles, tile_assignments
from gpu.plans.plan_cache import ROW_BUCKETS
from gpu.reference import moe as reference
from gpu.reference.ops import Epilogue, Norm, rms_norm
from gpu.webgpu.buffers import Memory
from gpu.webgpu.plan import Recorder
from gpu.webgpu.tiling import GPU, SOFTWARE_LOADS, Tuning
from tests.gpu.ops.rig import (
    GUARD_ROWS,
    POISON,
    ROUNDING,
    Array,
    Arrays,
    Output,
    Rig,
    compare,
    limited,
    plain_rows,
)

pytestmark = pytest.mark.parity
EPS = 1e-5
SIX = MoeConfig(6, 2, 8, norm_topk_prob=True)
TUNINGS: dict[str, Tuning | None] = {"own": None, "loads": SOFTWARE_LOADS, "gpu": GPU}


def routed(rig: Rig, chosen: Array, gates: Array | None = None) -> ops.ExpertRouting:
    """Upload a routing as `moe_topk` writes it; rows past the last are poisoned."""
    n_rows, experts_per_token = chosen.shape
    ids = np.full((n_rows + GUARD_ROWS, experts_per_token), POISON, np.uint32)
    ids[:n_rows] = chosen
    found = ids.copy()
    if gates is not None:
        found[:n_rows] = gates.astype(np.float32).view(np.uint32)
    return ops.ExpertRouting(
        rig.memory.upload("chosen", ids), rig.memory.upload("gates", found.view(np.float32))
    )


def choices(rng: np.random.Generator, rows: int, of: MoeConfig) -> Array:
    """Return random choices: experts differ between rows; some are chosen often, some never."""
    liking = rng.permutation(np.geomspace(1, 0.01, of.n_experts))
    noise = rng.gumbel(size=(rows, of.n_experts)) + np.log(liking)
    chosen: Array = np.argsort(-noise, axis=1)[:, : of.experts_per_token].astype(np.uint32)
    return chosen


# ---- moe_topk --------------------------------------------------------------------------


def choose(
    rig: Rig, logits: Array, of: MoeConfig, *, bucket: int | None = None
) -> tuple[Array, Array]:
    batch = rig.batch(plain_rows(len(logits)), bucket=bucket)
    given = np.concatenate([logits, np.full((len(logits), 2), np.nan, np.float32)], axis=1)
    shape = (len(logits), of.experts_per_token)
    ids, gates = (
        rig.output(name, *shape, stride=of.experts_per_token) for name in ("ids", "gates")
    )
    words = replace(ids.tensor, dtype="u32")

    def record(rec: Recorder) -> None:
        routing = ops.ExpertRouting(words, gates.tensor)
        ops.moe_topk(rec, batch, "choose", of, rig.input("logits", given), routing)

    rig.run(record)
    return ids.read().view(np.uint32), gates.read()


@pytest.mark.parametrize("norm_topk_prob", [False, True], ids=["of_all", "normalised"])
@pytest.mark.parametrize(
    ("n", "experts_per_token"),
    [(1, 1), (2, 1), (8, 2), (5, 5), (60, 4), (64, 8), (128, 8), (1024, 32)],
)
def test_the_experts_of_the_largest_logits_are_chosen(
    rig: Rig, n: int, experts_per_token: int, norm_topk_prob: bool
) -> None:
    rng, of = np.random.default_rng(n), MoeConfig(n, experts_per_token, 8, norm_topk_prob)
    logits = (rng.normal(size=(7, n)) * 3).astype(np.float32)
    ids, gates = choose(rig, logits, of, bucket=8)
    want_ids, want = reference.moe_topk(
        logits.astype(np.float64), experts_per_token, norm_topk_prob
    )
    assert np.array_equal(ids, want_ids)
    size = (np.abs(logits).max() + n) * 4 * ROUNDING  # of exp's argument; of a sum of n
    compare("moe_topk", str(of), gates, want, size * want, seed=n)


@pytest.mark.smoke
def test_of_equal_logits_the_smaller_id_is_chosen(rig: Rig) -> None:
    of = MoeConfig(12, 3, 8, norm_topk_prob=True)
    logits = np.zeros((3, 12), np.float32)
    logits[1, [4, 9, 11]] = 1.0
    logits[2] = np.repeat([-1e30, 2.0, -1e30], 4)
    ids, gates = choose(rig, logits, of)
    assert ids.tolist() == [[0, 1, 2], [4, 9, 11], [4, 5, 6]]
    assert np.allclose(gates, 1 / 3)


def test_logits_far_apart(rig: Rig) -> None:
    of = MoeConfig(4, 2, 8, norm_topk_prob=False)
    logits = np.array([[1e30, -1e30, 0, 1e29], [-200, -100, -300, -400]], np.float32)
    ids, gates = choose(rig, logits, of)
    assert ids.tolist() == [[0, 3], [1, 0]]
    assert np.allclose(gates, [[1, 0], [1, 0]], atol=1e-30)


def test_logits_that_are_not_numbers_give_no_two_experts_one_place(rig: Rig) -> None:
    """The places would race, and one of them would keep the experts of the step before."""
    of = MoeConfig(6, 3, 8, norm_topk_prob=True)
    nan = np.nan
    logits = np.array([[nan] * 6, [nan, 1, nan, 3, nan, nan], [0, 1, nan, 2, 3, 4]], np.float32)
    ids, gates = choose(rig, logits, of)
    assert ids.tolist() == [[0, 1, 2], [3, 1, 0], [5, 4, 3]]
    assert np.isnan(gates).all(axis=1).tolist() == [True, True, False]


# ---- moe_permute -----------------------------------------------------------------------------


@pytest.mark.parametrize("tuning", TUNINGS)
@pytest.mark.parametrize(
    ("rows", "bucket", "n", "experts_per_token"),
    [
        (3, 4, 2, 1),
        (5, 8, 8, 2),
        (128, 128, 8, 2),
        (77, 128, 60, 4),
        (128, 128, 300, 8),
        (9, 16, 1, 1),
    ],
)
def test_assignments_are_grouped_by_expert(
    rig: Rig, rows: int, bucket: int, n: int, experts_per_token: int, tuning: str
) -> None:
    rig, of = tuned(rig, tuning), MoeConfig(n, experts_per_token, 8, norm_topk_prob=True)
    chosen = choices(np.random.default_rng(rows), rows, of)
    tile = tile_assignments(rig.device.tuning, of, bucket)
    n_tiles, batch = max_tiles(of, bucket, tile), rig.batch(plain_rows(rows), bucket=bucket)
    order, tiles = (
        rig.output("order", rows * experts_per_token, 1, 1),
        rig.output("tiles", n_tiles, 4, 4),
    )
    permutation = ops.ExpertPermutation(
        *(replace(out.tensor, dtype="u32") for out in (order, tiles))
    )
    routing = routed(rig, chosen)
    rig.run(lambda rec: ops.moe_permute(rec, batch, "group", of, routing, permutation))
    want_order, want_tiles = reference.moe_permute(chosen.astype(np.int64), tile)
    assert np.array_equal(order.read().view(np.uint32)[:, 0], want_order)
    got = tiles.read().view(np.uint32)
    assert np.array_equal(got[: len(want_tiles), :3], want_tiles)
    assert not got[len(want_tiles) :].any()
    assert not got[:, 3].any()


# ---- experts ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A matmul of `rows` rows in a plan for `bucket`. `shards`: about how many pieces the weights
    are cut into; `places`: where experts lie, None: in order."""

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
    tuning: str = "own"

    def __str__(self) -> str:
        flags = [f for f in ("norm", "bias", "gated", "per_assignment") if getattr(self, f)]
        return f"{self.dtype}-{self.rows}of{self.bucket}x{self.k}x{self.n}-{self.tuning}-{flags}"


@dataclass(frozen=True)
class Problem:
    """`stored`: the weights after packing and unpacking, (n_experts, n, k)."""

    x: Array
    weights: Array
    stored: Array
    gain: Array
    bias: Array
    chosen: Array

    @classmethod
    def of(cls, case: Case) -> Problem:
        rng = np.random.default_rng(5)
        n_x = case.rows * case.of.experts_per_token if case.per_assignment else case.rows
        shape = (case.of.n_experts, case.n, case.k)
        weights = (rng.normal(size=shape) / np.sqrt(case.k)).astype(np.float32)
        flat = weights.reshape(-1, case.k)
        return cls(
            x=rng.normal(size=(n_x, case.k)).astype(np.float32),
            weights=weights,
            stored=unpack(case.dtype, pack(case.dtype, flat), case.k).reshape(shape),
            gain=rng.uniform(0.5, 1.5, case.k).astype(np.float32),
            chosen=choices(rng, case.rows, case.of),
            bias=rng.normal(size=(case.rows * case.of.experts_per_token, case.n)).astype(
                np.float32
            ),
        )


def tuned(rig: Rig, name: str) -> Rig:
    tuning = TUNINGS[name]
    return Rig(replace(rig.device, tuning=tuning), rig.kernels) if tuning else rig


def stacked(rig: Rig, case: Case, weights: Array) -> ExpertStack:
    """Upload the experts as a loader would, in the order of `case.places`."""
    n, k = case.n, case.k
    in_places = weights if case.places is None else weights[np.argsort(case.places)]
    limit = -(-case.of.n_experts // case.shards) * n * 4 * row_words(case.dtype, k)
    memory = Memory(limited(rig.device, limit) if case.shards > 1 else rig.device)
    if case.gated:
        halves = {f"{e}.{i}": w[i::2] for e, w in enumerate(in_places) for i in (0, 1)}
        names = [(f"{e}.0", f"{e}.1") for e in range(case.of.n_experts)]
        return WeightLoader(Arrays(halves), memory, case.dtype).experts("w", names, n // 2, k)
    arrays = Arrays({str(e): w for e, w in enumerate(in_places)})
    one = [(str(e),) for e in range(case.of.n_experts)]
    return WeightLoader(arrays, memory, case.dtype).experts("w", one, n, k)


def compute(rig: Rig, case: Case, p: Problem) -> Array:
    rig = tuned(rig, case.tuning)
    batch, of = rig.batch(plain_rows(case.rows), bucket=case.bucket), case.of
    stack = stacked(rig, case, p.weights)
    assert len(stack.matrix.shards) >= case.shards
    places = np.arange(of.n_experts) if case.places is None else np.array(case.places)
    slots = rig.memory.upload("slots", places.astype(np.uint32))
    y = rig.output("y", case.rows * of.experts_per_token, case.n // 2 if case.gated else case.n)
    gain = rig.memory.upload("gain", np.pad(p.gain, (0, -case.k % 32)))
    routing, permutation = routed(rig, p.chosen), ops.ExpertPermutation.make(of, rig.memory)
    x, bias = rig.input("x", p.x), rig.input("bias", p.bias) if case.bias else None

    def record(rec: Recorder) -> None:
        if ops.is_permuted(of, batch.n_rows):
            ops.moe_permute(rec, batch, "group", of, routing, permutation)
        ops.moe_matmul(
            rec, batch, "experts", of, x, stack, slots, routing, permutation, y.tensor,
            norm=ops.Norm(gain, EPS) if case.norm else None,
            bias=bias,
            activation="silu" if case.gated else None,
            gated=case.gated,
            per_assignment=case.per_assignment,
        )  # fmt: skip

    rig.run(record)
    return y.read()


def check(rig: Rig, case: Case) -> None:
    p = Problem.of(case)
    want, bound = expected(case, p)
    compare(f"experts.{case.dtype}", case, compute(rig, case, p), want, bound, seed=5)


def expected(case: Case, p: Problem) -> tuple[Array, Array]:
    """Bounds as for `matmul`."""
    x, stored, gain = (a.astype(np.float64) for a in (p.x, p.stored, p.gain))
    chosen = p.chosen.astype(np.int64)
    norm = Norm(gain, EPS) if case.norm else None
    bias = p.bias if case.bias else None
    epilogue = Epilogue("silu", gated=True, bias=bias)
    per_assignment = case.per_assignment
    before = reference.moe_matmul(x, stored, chosen, norm=norm, per_assignment=per_assignment)
    rows = x if case.per_assignment else np.repeat(x, case.of.experts_per_token, axis=0)
    normed = rms_norm(rows, gain, EPS) if case.norm else rows
    sizes = np.linalg.norm(stored, axis=2)[chosen.reshape(-1)]
    bound = 8 * ROUNDING * np.linalg.norm(normed, axis=1)[:, None] * sizes
    if case.norm:
        bound += (8 + np.sqrt(case.k)) * ROUNDING * np.abs(before)
    if case.bias:
        before = before + p.bias
        bound += 2 * ROUNDING * (np.abs(before) + np.abs(p.bias))
    want = before
    if case.gated:
        want = reference.moe_matmul(
            x, stored, chosen, epilogue, norm=norm, per_assignment=per_assignment
        )
        gate, up = before[:, 0::2], before[:, 1::2]
        act = np.abs(gate / (1 + np.exp(-gate)))
        bound = bound[:, 0::2] * 1.2 * np.abs(up) + bound[:, 1::2] * act  # |act′| ≤ 1.2
        bound += (16 + 4 * np.abs(gate)) * ROUNDING * act * np.abs(up)
    return want, bound


@pytest.mark.parametrize(
    ("dtype", "tuning"),
    [*((d, tuning) for tuning in ("own", "gpu") for d in FORMATS), ("f32", "loads")],
)
@pytest.mark.parametrize("bucket", [1, 64, 128], ids=["alone", "grouped", "shared"])
def test_matmul_of_assignments_with_the_weights_of_their_experts(
    rig: Rig, bucket: int, tuning: str, dtype: str
) -> None:
    rows = max(1, bucket - 1)
    check(rig, Case(70, 38, dtype, rows=rows, bucket=bucket, norm=True, gated=True, tuning=tuning))
    check(rig, Case(33, 19, dtype, rows=rows, bucket=bucket, per_assignment=True, tuning=tuning))
    check(rig, Case(33, 139, dtype, rows=rows, bucket=bucket, norm=True, tuning=tuning))


@pytest.mark.parametrize("bucket", [1, 16], ids=["alone", "grouped"])
def test_bias_of_assignments(rig: Rig, bucket: int) -> None:
    """The bias is added before the activation, in the order of assignments however they are
    grouped, in shards too."""
    rows = max(1, bucket - 1)
    check(rig, Case(33, 22, "q8", rows=rows, bucket=bucket, bias=True, norm=True, gated=True))
    check(rig, Case(64, 19, rows=rows, bucket=bucket, bias=True, per_assignment=True, shards=3))


@pytest.mark.parametrize("bucket", [2, 32])
def test_weights_in_shards_and_in_other_slots(rig: Rig, bucket: int) -> None:
    places = (3, 0, 5, 1, 4, 2)
    check(rig, Case(64, 32, "q8", rows=bucket, bucket=bucket, norm=True, gated=True, places=places))
    check(rig, Case(64, 32, "f16", rows=bucket, bucket=bucket, shards=3, places=places))


@pytest.mark.parametrize(
    ("dtype", "tuning"), [*((d, "gpu") for d in FORMATS), ("q8", "own"), ("q8", "loads")]
)
@pytest.mark.bits
def test_the_bits_of_an_assignment_do_not_depend_on_the_rows_beside_it(
    rig: Rig, dtype: str, tuning: str
) -> None:
    whole = Case(
        96, 146, dtype, MoeConfig(9, 3, 8, norm_topk_prob=True), rows=128, bucket=128, norm=True,
        gated=True, tuning=tuning,
    )  # fmt: skip
    expect_bits_of_one_row(rig, whole)


def expect_bits_of_one_row(rig: Rig, whole: Case) -> None:
    """Fail unless every step of fewer rows, so every size of tile, gives each row the bits that it
    has among all."""
    problem, of = Problem.of(whole), whole.of
    together = compute(rig, whole, problem).reshape(whole.rows, of.experts_per_token, -1)
    rng = np.random.default_rng(7)
    for bucket in (b for b in ROW_BUCKETS if b < whole.bucket):
        rows = rng.permutation(whole.rows)[:bucket]
        part = replace(problem, x=problem.x[rows], chosen=problem.chosen[rows])
        apart = compute(rig, replace(whole, rows=bucket, bucket=bucket), part)
        same = apart.view(np.uint32) == together[rows].reshape(apart.shape).view(np.uint32)
        assert same.all(), f"{bucket} rows differ from what they give among {whole.rows}"


def test_tiles_are_single_assignments_then_about_an_experts_share_then_64() -> None:
    of = MoeConfig(9, 3, 8, norm_topk_prob=True)
    sizes = [tile_assignments(GPU, of, n_rows) for n_rows in (1, 2, 4, 8, 16, 32, 64, 128, 512)]
    assert sizes == [1, 1, 1, 2, 4, 8, 16, 64, 64]


def test_tiles_of_64_assignments_cannot_fold_in_a_norm(rig: Rig) -> None:
    case = Case(33, 19, rows=128, bucket=128, norm=True, per_assignment=True, tuning="gpu")
    with pytest.raises(ValueError, match="tiles of 64 assignments cannot fold in a norm"):
        compute(rig, case, Problem.of(case))


# ---- moe_combine -------------------------------------------------------------------------


@pytest.mark.parametrize("width", [32, 70, 300])
@pytest.mark.parametrize("has_shared", [False, True], ids=["routed", "shared"])
def test_outputs_of_experts_are_weighted_and_added_up(
    rig: Rig, has_shared: bool, width: int
) -> None:
    rng, of, rows = np.random.default_rng(width), MoeConfig(7, 3, 8, norm_topk_prob=False), 5
    parts, shared, residual = (
        rng.normal(size=(n, width)).astype(np.float32) for n in (rows * 3, rows, rows)
    )
    gates = rng.uniform(0, 1, (rows, 3)).astype(np.float32)
    logits = np.full((rows, 8), np.nan, np.float32)
    logits[:, 7] = [-90.0, -2.0, 0.0, 3.0, 90.0]
    chosen = np.zeros((rows, 3), np.uint32)
    f64 = [a.astype(np.float64) for a in (parts, gates, shared, logits[:, 7])]
    size = np.einsum("rk,rkn->rn", f64[1], np.abs(f64[0]).reshape(rows, 3, -1))
    bound = ROUNDING * (8 * size + 8 * np.abs(shared) + 2 * np.abs(residual))
    batch, routing = rig.batch(plain_rows(rows), bucket=8), routed(rig, chosen, gates)
    of_all = (rig.input("shared", shared), rig.input("logits", logits)) if has_shared else None
    for given in (None, residual):
        y = rig.output("y", rows, width)

        def record(rec: Recorder, y: Output = y, given: Array | None = given) -> None:
            before = None if given is None else rig.input("residual", given)
            ops.moe_combine(
                rec, batch, "combine", of, rig.input("parts", parts), routing, y.tensor,
                shared=of_all, residual=before,
            )  # fmt: skip

        rig.run(record)
        want = reference.moe_combine(
            f64[0],
            f64[1],
            shared=f64[2] if has_shared else None,
            logit=f64[3] if has_shared else None,
            residual=given,
        )
        compare("moe_combine", (width, has_shared), y.read(), want, bound, seed=width)


def test_room_for_tiles_is_never_too_small() -> None:
    """The worst case: one assignment per expert and the rest anywhere."""
    for n, experts_per_token, rows, tile in [
        (8, 2, 128, 16),
        (60, 4, 64, 4),
        (3, 1, 2, 2),
        (128, 8, 4, 1),
    ]:
        of, n_assignments = (
            MoeConfig(n, experts_per_token, 8, norm_topk_prob=True),
            rows * experts_per_token,
        )
        for n_used in range(1, min(n, n_assignments) + 1):
            worst = (n_used - 1) + -(-(n_assignments - n_used + 1) // tile)
            spread = n_used * (1 + (n_assignments // n_used - 1) // tile)
            assert max(worst, spread) <= max_tiles(of, rows, tile)
