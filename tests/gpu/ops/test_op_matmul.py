"""Matmul with everything that is fused into it, against the float64 twin."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest

from gpu import ops
from gpu.checkpoint.packing import FORMATS, pack, row_words, unpack
from gpu.plans.plan_cache import ROW_BUCKETS
from gpu.reference import ops as reference
from gpu.step import Sample
from gpu.webgpu.device_policy import ROWS
from gpu.webgpu.plan import Recorder
from gpu.webgpu.tiling import GPU, SOFTWARE_LOADS, Tuning
from tests.gpu.ops.rig import ROUNDING, Array, Rig, compare, greedy, plain_rows

pytestmark = pytest.mark.parity
EPS = 1e-5


@dataclass(frozen=True)
class Case:
    """One matmul. `bucket`: rows of the plan; `rows`: of the step. `shards`: about how many pieces
    the weight is cut into. `tuning`: an entry of `TUNINGS`. `scale`: of x, `factor`: of y.
    `activation` None: silu where the product is gated."""

    k: int
    n: int
    dtype: str = "f32"
    rows: int = 3
    bucket: int = 4
    norm: bool = False
    bias: bool = False
    residual: bool = False
    gated: bool = False
    gather: bool = False
    shards: int = 1
    tuning: str = "own"
    scale: float = 1.0
    activation: str | None = None
    factor: float = 1.0
    cap: float | None = None
    seed: int = 0

    @property
    def act(self) -> str | None:
        return self.activation or ("silu" if self.gated else None)

    def __str__(self) -> str:
        flags = [f for f in FLAGS if getattr(self, f)]
        if self.shards > 1:
            flags.append(f"{self.shards}shards")
        if self.tuning != "own":
            flags.append(self.tuning)
        if self.scale != 1:
            flags.append(f"×{self.scale:g}")
        flags += [f"{x}" for x in (self.activation, self.factor, self.cap) if x not in (None, 1)]
        return "-".join([self.dtype, f"{self.rows}of{self.bucket}x{self.k}x{self.n}", *flags])


DTYPES = tuple(FORMATS)
TUNINGS: dict[str, Tuning | None] = {"own": None, "loads": SOFTWARE_LOADS, "gpu": GPU}
"""Tunings: the device's own, and those of other kinds of device."""
SMALL_TILES = replace(GPU, shared_m=4)
FLAGS = ("norm", "bias", "residual", "gated", "gather")


@dataclass(frozen=True)
class Problem:
    """The numbers of a case. `stored`: the weight after packing and unpacking."""

    x: Array
    weight: Array
    stored: Array
    gain: Array
    bias: Array
    residual: Array
    gathered: Array

    @classmethod
    def of(cls, case: Case) -> Problem:
        rng = np.random.default_rng(case.seed)

        def normal(*shape: int) -> Array:
            return rng.normal(size=shape).astype(np.float32)

        width = case.n // 2 if case.gated else case.n
        n_out = min(case.rows, 5) if case.gather else case.rows
        weight = normal(case.n, case.k) / np.float32(np.sqrt(case.k))
        return cls(
            x=normal(case.rows, case.k) * np.float32(case.scale),
            weight=weight,
            stored=unpack(case.dtype, pack(case.dtype, weight), case.k),
            gain=rng.uniform(0.5, 1.5, case.k).astype(np.float32),
            bias=normal(case.n),
            residual=normal(n_out, width) * 3,
            gathered=rng.permutation(case.rows)[:n_out],
        )


def compute(rig: Rig, case: Case, problem: Problem) -> Array:
    """Return the device's result."""
    p = problem
    rig = tuned(rig, case.tuning)
    samples: list[Sample] = [greedy(int(row)) for row in p.gathered] if case.gather else []
    batch = rig.batch(plain_rows(case.rows), samples, bucket=case.bucket)
    row_bytes = 4 * row_words(case.dtype, case.k)
    limit = -(-case.n // case.shards) * row_bytes if case.shards > 1 else None
    matrix = (
        rig.paired(p.weight[0::2], p.weight[1::2], case.dtype, max_binding_bytes=limit)
        if case.gated
        else rig.matrix(p.weight, case.dtype, max_binding_bytes=limit)
    )
    assert len(matrix.shards) >= case.shards
    x = rig.input("x", p.x)
    y = rig.output("y", *p.residual.shape)
    gain = rig.memory.upload("gain", np.pad(p.gain, (0, -case.k % 32)))

    def record(rec: Recorder) -> None:
        ops.matmul(
            rec,
            batch,
            "matmul",
            x,
            matrix,
            y.tensor,
            norm=ops.Norm(gain, EPS) if case.norm else None,
            bias=rig.memory.upload("bias", p.bias) if case.bias else None,
            residual=rig.input("residual", p.residual) if case.residual else None,
            activation=case.act,
            gated=case.gated,
            scale=case.factor,
            cap=case.cap,
            gather=case.gather,
        )

    rig.run(record)
    return y.read()


def expected(case: Case, p: Problem) -> tuple[Array, Array]:
    """Return the float64 result and the error bound of float32.

    A float32 dot product of random signs is off by about ROUNDING · ‖a‖ · ‖b‖; eight times that
    leaves room for the unlucky element of thousands. Products in float16, a lost chunk or a wrong
    mean are off by hundreds of times that.
    """
    f64 = {name: getattr(p, name).astype(np.float64) for name in ("x", "stored", "bias", "gain")}
    x = f64["x"][p.gathered] if case.gather else f64["x"]
    wide = replace(case, gated=False, residual=False, activation=None, factor=1.0, cap=None)
    before = _reference(wide, p)  # before the activation
    normed = reference.rms_norm(x, f64["gain"], EPS) if case.norm else x
    size = np.linalg.norm(normed, axis=1)[:, None] * np.linalg.norm(f64["stored"], axis=1)
    bound = 8 * ROUNDING * (size + np.abs(f64["bias"]) * case.bias)
    if case.norm:
        bound += (8 + np.sqrt(case.k)) * ROUNDING * np.abs(before)
    if case.gated:
        gate, up = before[:, 0::2], before[:, 1::2]
        act = np.abs(activated(case, gate))
        bound = bound[:, 0::2] * 1.2 * np.abs(up) + bound[:, 1::2] * act  # |act′| ≤ 1.2
        bound += (16 + 4 * np.abs(gate)) * ROUNDING * act * np.abs(up)
        bound += approximation(case, gate) * np.abs(up)
    elif case.act:
        act = np.abs(activated(case, before))
        bound = 1.2 * bound + (16 + 4 * np.abs(before)) * ROUNDING * act
        bound += approximation(case, before)
    want = _reference(case, p)
    if case.cap:
        bound = bound + 8 * ROUNDING * case.cap
    bound = case.factor * bound + ROUNDING * np.abs(want) * (case.factor != 1.0)
    if case.residual:
        bound = bound + 2 * ROUNDING * (np.abs(p.residual) + np.abs(want))
    return want, bound


def _reference(case: Case, p: Problem) -> Array:
    def given(array: Array, there: bool) -> Array | None:
        return array.astype(np.float64) if there else None

    x = p.x[p.gathered] if case.gather else p.x
    epilogue = reference.Epilogue(
        activation=case.act,
        gated=case.gated,
        scale=case.factor,
        cap=case.cap,
        bias=given(p.bias, case.bias),
        residual=given(p.residual, case.residual),
    )
    norm = reference.Norm(p.gain.astype(np.float64), EPS) if case.norm else None
    return reference.matmul(x.astype(np.float64), p.stored.astype(np.float64), epilogue, norm=norm)


def activated(case: Case, x: Array) -> Array:
    return reference.ACTIVATIONS[case.act](x) if case.act else x


def approximation(case: Case, x: Array) -> Array:
    """Bound of the error of GELU's polynomial: 1.5e-7 and its own rounding.
    The tanh form takes its argument's rounding into an exponential."""
    if case.activation == "gelu":
        return np.abs(x) * 2e-7
    if case.activation == "gelu_tanh":
        return np.abs(activated(case, x)) * 8 * ROUNDING * (np.abs(x) + np.abs(x) ** 3)
    return np.zeros_like(x)


def tuned(rig: Rig, name: str) -> Rig:
    tuning = SMALL_TILES if name == "gpu with small tiles" else TUNINGS[name]
    return Rig(replace(rig.device, tuning=tuning), rig.kernels) if tuning else rig


def check(rig: Rig, case: Case) -> None:
    problem = Problem.of(case)
    want, bound = expected(case, problem)
    got = compute(rig, case, problem)
    compare(f"matmul.{case.dtype}", case, got, want, bound, case.seed)


# Software tiles are 4 or 8 wide in workgroups of 8 (32 and 64 columns), GPU tiles 2 or 4 wide, some
# in a workgroup; blocks are of 32.
SIZES = [
    (1, 1), (1, 33), (7, 31), (8, 32), (9, 34), (13, 63), (17, 65), (64, 128), (64, 512),
    (172, 64), (251, 127), (257, 40), (64, 1023), (64, 1024), (12, 1025), (1031, 2),
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("k", "n"), SIZES)
def test_every_size_equals_the_reference(rig: Rig, k: int, n: int, dtype: str) -> None:
    check(rig, Case(k, n, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tuning", ["loads", "gpu"])
@pytest.mark.parametrize(("k", "n"), [(20, 1), (33, 15), (500, 16), (576, 17), (1100, 33)])
def test_every_size_equals_the_reference_in_every_tiling(
    rig: Rig, k: int, n: int, tuning: str, dtype: str
) -> None:
    check(rig, Case(k, n, dtype, rows=1, bucket=1, tuning=tuning, norm=True))
    check(rig, Case(k, n, dtype, rows=5, bucket=8, tuning=tuning))


@pytest.mark.parametrize("flags", list(product([False, True], repeat=len(FLAGS))), ids=str)
def test_every_combination_of_flags(rig: Rig, flags: tuple[bool, ...]) -> None:
    chosen = dict(zip(FLAGS, flags, strict=True))
    for dtype in DTYPES:
        check(rig, Case(13, 34, dtype, **chosen, seed=1))


@pytest.mark.parametrize(
    ("bucket", "tuning"),
    [(b, t) for b in ROW_BUCKETS for t in TUNINGS if b <= ROWS or t == "gpu"],
)
def test_every_row_bucket_full_and_not(rig: Rig, bucket: int, tuning: str) -> None:
    for rows in {1, bucket // 2 + 1, bucket - 1 or 1, bucket}:
        case = Case(74, 37, rows=rows, bucket=bucket, norm=True, residual=True, tuning=tuning)
        check(rig, case)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [101, 128])
@pytest.mark.bits
def test_the_largest_tiles_have_the_bits_of_smaller_ones(rig: Rig, dtype: str, rows: int) -> None:
    """They take as many columns as give every multiprocessor of a large GPU a workgroup."""
    case = Case(70, 8200, dtype, rows=rows, bucket=128, residual=True, tuning="gpu")
    assert GPU.tile(128, 8200, 3, may_share=True).group == (128, 64)
    problem = Problem.of(case)
    want, bound = expected(case, problem)
    large = compute(rig, case, problem)
    compare(f"matmul.{dtype}", case, large, want, bound, case.seed)
    small = compute(rig, replace(case, tuning="gpu with small tiles"), problem)
    assert np.array_equal(large.view(np.uint32), small.view(np.uint32))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize("shards", [2, 5])
def test_a_matrix_cut_into_shards(rig: Rig, shards: int, gated: bool, dtype: str) -> None:
    check(rig, Case(27, 102, dtype, bias=True, gated=gated, residual=True, shards=shards))


@pytest.mark.parametrize("scale", [1e-8, 1e-3, 1e4, 1e12])
def test_small_and_large_activations(rig: Rig, scale: float) -> None:
    check(rig, Case(40, 36, norm=True, scale=scale))
    check(rig, Case(40, 36, norm=True, gated=True, bias=True, scale=scale))


@pytest.mark.smoke
def test_silu_of_gates_that_overflow_exp(rig: Rig) -> None:
    check(rig, Case(8, 64, gated=True, activation="silu", scale=300.0))


@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "gelu"])
@pytest.mark.parametrize("scale", [0.1, 1.0, 4.0, 300.0])
def test_activations(rig: Rig, activation: str, scale: float, gated: bool) -> None:
    check(rig, Case(20, 66, bias=True, activation=activation, gated=gated, scale=scale))


def test_a_scale_and_a_soft_cap(rig: Rig) -> None:
    check(rig, Case(20, 33, residual=True, factor=0.22))
    for scale in (0.01, 3.0, 1e6):
        check(rig, Case(33, 20, norm=True, gather=True, cap=3.0, factor=0.5, scale=scale))


STORIES260K = {"qkv": (64, 128), "gate_up": (64, 344), "down": (172, 64), "head": (64, 512)}
SMOLLM2_135M = {"qkv": (576, 960), "gate_up": (576, 3072), "down": (1536, 576)}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("k", "n"), [*STORIES260K.values(), *SMOLLM2_135M.values()], ids=str)
def test_shapes_of_real_models(rig: Rig, k: int, n: int, dtype: str) -> None:
    check(rig, Case(k, n, dtype, norm=True, residual=True))


def test_the_widest_mlp_of_any_llama(rig: Rig) -> None:
    """A device that ends loops early, as Mesa's software device does, would show."""
    if rig.device.checked:
        pytest.skip("checks keep loops rolled up, and Mesa's software device ends long ones")
    check(rig, Case(53_248, 16, "f16", rows=8, bucket=8, residual=True))


def test_the_output_head_of_smollm2_135m(rig: Rig) -> None:
    check(rig, Case(576, 49152, "f16", rows=2, bucket=2, norm=True, gather=True))


@pytest.mark.parametrize(("dtype", "gated"), [("f32", True), ("q4", False)])
@pytest.mark.parametrize("tuning", TUNINGS)
@pytest.mark.bits
def test_a_rows_bits_do_not_depend_on_tile_bucket_shards_or_the_rows_beside_it(
    rig: Rig, tuning: str, dtype: str, gated: bool
) -> None:
    most = ROW_BUCKETS[-1] if tuning == "gpu" else ROWS
    whole = Case(
        1100, 134, dtype, rows=most, bucket=most, norm=True, bias=True, residual=True, gated=gated,
        tuning=tuning,
    )  # fmt: skip
    problem = Problem.of(whole)
    together = compute(rig, whole, problem)
    rng = np.random.default_rng(7)
    for bucket in ROW_BUCKETS[: ROW_BUCKETS.index(most) + 1]:
        rows = rng.permutation(most)[:bucket]
        part = replace(problem, x=problem.x[rows], residual=problem.residual[rows])
        case = replace(whole, rows=bucket, bucket=bucket, shards=3 if bucket in (2, 16) else 1)
        apart = compute(rig, case, part)
        same = apart.view(np.uint32) == together[rows].view(np.uint32)
        assert same.all(), f"{case}: row {np.argwhere(~same)[0][0]} differs from that of all rows"
