"""int8 activations, and matmuls with them, against their float64 twins.

Where a number lies between two bytes, the last bit of a float32 decides which it becomes. So the
bytes are held to what they were rounded from, and products to the bytes they were given."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpu import ops
from gpu.checkpoint.packing import FORMATS, pack, unpack
from gpu.config import MoeConfig
from gpu.ops.quantize_activations import quantized_row_words
from gpu.reference import quantize_activations as reference
from gpu.reference.ops import rms_norm
from gpu.webgpu.plan import Recorder
from gpu.webgpu.tiling import GPU
from tests.gpu.ops import test_op_matmul as matmul_test
from tests.gpu.ops import test_op_moe as of_experts
from tests.gpu.ops.rig import (
    ROUNDING,
    Array,
    Rig,
    as_kind,
    compare,
    plain_rows,
    unpack_quantized_rows,
)
from tests.gpu.ops.test_op_matmul import EPS, Case, Problem

pytestmark = pytest.mark.parity


# ---- rounding ----------------------------------------------------------------------------------


@pytest.mark.parametrize("even_odd", [False, True], ids=["in_order", "even_odd"])
@pytest.mark.parametrize("software", [True, False], ids=["software", "gpu"])
def test_activations_are_rounded_to_the_nearest_int8(
    rig: Rig, software: bool, even_odd: bool
) -> None:
    rig = Rig(as_kind(rig.device, software), rig.kernels)
    for k, scale, norm in (
        (1, 1.0, True), (31, 1e-8, True), (64, 1e4, False), (97, 1.0, False), (1100, 30.0, True),
    ):  # fmt: skip
        rng = np.random.default_rng(k)
        x = (rng.normal(size=(6, k)) * scale).astype(np.float32)
        x[1, : k // 2] = 0  # halves of zeros
        gain = rng.uniform(0.5, 1.5, k).astype(np.float32)
        got, scales, sums = unpack_quantized_rows(rounded(rig, x, gain if norm else None, even_odd))
        given = x.astype(np.float64)
        want = reference.halves(rms_norm(given, gain, EPS) if norm else given, even_odd=even_odd)
        right = reference.scales(want)
        of = (8 + np.sqrt(k) * norm) * ROUNDING
        compare("quantize_activations.scale", k, scales, right, of * right, seed=k)
        near = want / np.where(right > 0, right, 1)[..., None]
        compare("quantize_activations", k, got, near, np.array(0.5 + 127 * 8 * ROUNDING), seed=k)
        parts = scales * got.sum(-1)
        bound = 4 * ROUNDING * np.abs(parts).sum(-1)
        compare("quantize_activations.sum", k, sums, parts.sum(-1), bound, seed=k)


@pytest.mark.parametrize("k", [1, 31, 97, 128, 1100])
@pytest.mark.bits
def test_the_bits_do_not_depend_on_the_workgroups_of_a_row(rig: Rig, k: int) -> None:
    rng = np.random.default_rng(k)
    x, gain = (rng.normal(size=shape).astype(np.float32) for shape in ((5, k), k))
    for norm in (None, gain):
        alone, shared = (rounded(with_workgroups(rig, n), x, norm, True) for n in (1, 5 * 128))
        assert np.array_equal(alone, shared)


def test_a_row_is_rounded_by_several_workgroups_on_a_gpu(rig: Rig) -> None:
    gpu = Rig(as_kind(rig.device, software=False), rig.kernels)
    n = gpu.device.policy.rounding_workgroups
    assert n > 1
    assert grids(gpu, 1) == [(n, 1, 1)]
    assert grids(gpu, 6) == [(-(-n // 6), 6, 1)]
    assert grids(gpu, n) == [(1, n, 1)]
    assert grids(with_workgroups(rig, 10**6), 1) == [(32, 1, 1)], "a workgroup has four blocks"
    assert grids(with_workgroups(rig, 1), 1) == [(1, 1, 1)]


def with_workgroups(rig: Rig, n: int) -> Rig:
    """Return a rig whose device rounds with at least `n` workgroups."""
    policy = replace(rig.device.policy, rounding_workgroups=n)
    return Rig(replace(rig.device, policy=policy), rig.kernels)


def grids(rig: Rig, n_rows: int) -> list[tuple[int, int, int]]:
    """Return the grid of rounding rows of 4,096 numbers."""
    k, rec = 4096, Recorder(rig.device, rig.kernels)
    x = rig.input("x", np.zeros((n_rows, k), np.float32))
    y = rig.memory.zeros("y", (n_rows, quantized_row_words(k)), "u32")
    batch = rig.batch(plain_rows(n_rows), bucket=n_rows)
    ops.quantize_activations(rec, batch, "bytes", x, k, y, even_odd=False)
    return [dispatch.grid for dispatch in rec.plan.dispatches]


def test_rows_of_expert_assignments(rig: Rig) -> None:
    x = np.random.default_rng(0).normal(size=(6, 40)).astype(np.float32)
    assert np.array_equal(rounded(rig, x, None, False, each=3), rounded(rig, x, None, False))


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_non_finite_activations_are_not_hidden(rig: Rig, wrong: float) -> None:
    x = np.ones((2, 70), np.float32)
    x[1, 40] = wrong
    _, scales, _ = unpack_quantized_rows(rounded(rig, x, None, False))
    assert np.isfinite(scales[0]).all()
    assert np.argwhere(~np.isfinite(scales[1])).tolist() == [[1, 0]]


def rounded(rig: Rig, x: Array, gain: Array | None, even_odd: bool, *, each: int = 1) -> Array:
    """Return the device's quantised rows, as words."""
    n_rows, k = x.shape
    batch = rig.batch(plain_rows(n_rows // each), bucket=n_rows // each)
    y = rig.output("y", n_rows, quantized_row_words(k), stride=quantized_row_words(k))
    given, norm = rig.input("x", x), None
    if gain is not None:
        norm = ops.Norm(rig.memory.upload("gain", np.pad(gain, (0, -k % 32))), EPS)
    rig.run(
        lambda rec: ops.quantize_activations(
            rec, batch, "bytes", given, k, y.tensor, norm=norm, even_odd=even_odd, each=each
        )
    )
    return y.read().view(np.uint32)


# ---- products ----------------------------------------------------------------------------------


@pytest.fixture(params=["own", "gpu"])
def q8_rig(rig: Rig, request: pytest.FixtureRequest) -> Rig:
    """A device with int8 matmuls, with its own tiling or that of GPUs."""
    tuning = rig.device.tuning if request.param == "own" else GPU
    return Rig(replace(rig.device, tuning=replace(tuning, q8_activations=True)), rig.kernels)


def check(rig: Rig, case: Case) -> None:
    problem = Problem.of(case)
    got = matmul_test.compute(rig, case, problem)
    x = rig.rounded(case.dtype, case.rows, case.k)
    given = replace(case, norm=False)
    want, bound = matmul_test.expected(given, replace(problem, x=x))
    bound = bound * minima_share(case.dtype, problem.weight)
    compare(f"matmul.bytes.{case.dtype}", case, got, want, bound, case.seed)


def minima_share(dtype: str, weight: Array) -> float:
    """Return the norm of q4's weights with codes and minima apart, relative to the weights': an
    int8 matmul sums the two separately."""
    k = weight.shape[1]
    packed = pack(dtype, weight)
    stored = unpack(dtype, packed, k)
    packed[:, : FORMATS[dtype].block_words * -(-k // 32)] = 0
    minima = unpack(dtype, packed, k)
    parts = np.linalg.norm(minima, axis=1) + np.linalg.norm(stored - minima, axis=1)
    return float((parts / np.linalg.norm(stored, axis=1)).max())


@pytest.mark.parametrize("dtype", ["q8", "q4"])
@pytest.mark.parametrize(("k", "n"), [(1, 1), (33, 34), (251, 127), (1100, 33)])
def test_q8_matmul_of_every_size(q8_rig: Rig, k: int, n: int, dtype: str) -> None:
    check(q8_rig, Case(k, n, dtype, rows=1, bucket=1))
    check(q8_rig, Case(k, n, dtype, rows=5, bucket=8, norm=True))
    check(q8_rig, Case(k, n, dtype, rows=67, bucket=128, norm=True))


@pytest.mark.parametrize("dtype", ["q8", "q4"])
def test_norm_bias_gate_and_residual_fused_into_q8_matmul(q8_rig: Rig, dtype: str) -> None:
    for case in (
        Case(40, 70, dtype, norm=True, bias=True, gated=True),
        Case(70, 66, dtype, bias=True, residual=True, activation="gelu_tanh", shards=3),
        Case(40, 70, dtype, rows=40, bucket=64, norm=True, bias=True, gated=True, shards=2),
    ):
        check(q8_rig, case)


@pytest.mark.parametrize("dtype", ["q8", "q4"])
@pytest.mark.parametrize("k", [20, 300, 1100])
@pytest.mark.bits
def test_a_rows_bits_do_not_depend_on_the_rows_beside_it(q8_rig: Rig, k: int, dtype: str) -> None:
    whole = Case(k, 70, dtype, rows=128, bucket=128, norm=True, residual=True)
    problem = Problem.of(whole)
    together = matmul_test.compute(q8_rig, whole, problem)
    for bucket in (1, 2, 4, 8, 16, 32, 64):
        rows = np.random.default_rng(bucket).permutation(128)[:bucket]
        part = replace(problem, x=problem.x[rows], residual=problem.residual[rows])
        case = replace(whole, rows=bucket, bucket=bucket, shards=3 if bucket == 4 else 1)
        apart = matmul_test.compute(q8_rig, case, part)
        same = apart.view(np.uint32) == together[rows].view(np.uint32)
        assert same.all(), f"{bucket} rows differ from what they are among 128"


@pytest.mark.parametrize("dtype", ["q8", "q4"])
@pytest.mark.bits
def test_the_largest_tiles_of_int8_rows_have_the_bits_of_smaller_ones(rig: Rig, dtype: str) -> None:
    """They have 128 rows, and leave enough workgroups."""
    tuning = replace(GPU, q8_activations=True)
    assert tuning.tile(128, 8200, 3, may_share=True).group == (128, 64)
    case = Case(70, 8200, dtype, rows=128, bucket=128, residual=True)
    problem = Problem.of(case)
    large, small, few = (
        matmul_test.compute(Rig(replace(rig.device, tuning=of), rig.kernels), part, p)
        for of, part, p in (
            (tuning, case, problem),
            (replace(tuning, shared_m=4), case, problem),
            (tuning, replace(case, rows=16, bucket=16), first_rows(problem, 16)),
        )
    )
    assert np.array_equal(large.view(np.uint32), small.view(np.uint32))
    assert np.array_equal(large[:16].view(np.uint32), few.view(np.uint32))


def first_rows(problem: Problem, n: int) -> Problem:
    return replace(problem, x=problem.x[:n], residual=problem.residual[:n])


@pytest.mark.parametrize(("dtype", "per_assignment"), [("q8", True), ("q4", False), ("q4", True)])
@pytest.mark.parametrize("bucket", [1, 16, 128], ids=["alone", "grouped", "shared"])
def test_q8_matmul_of_experts(q8_rig: Rig, bucket: int, dtype: str, per_assignment: bool) -> None:
    rig = q8_rig
    norm = not per_assignment
    case = of_experts.Case(
        70, 38, dtype, rows=bucket, bucket=bucket, norm=norm, per_assignment=per_assignment
    )
    problem = of_experts.Problem.of(case)
    got = of_experts.compute(rig, case, problem)
    x = rig.rounded(dtype, len(problem.x), case.k)
    want, bound = of_experts.expected(replace(case, norm=False), replace(problem, x=x))
    bound = bound * minima_share(dtype, problem.weights.reshape(-1, case.k))
    compare(f"experts.bytes.{dtype}", case, got, want, bound, seed=5)


@pytest.mark.parametrize("dtype", ["q8", "q4"])
@pytest.mark.parametrize("k", [20, 70, 300])
@pytest.mark.bits
def test_the_bits_of_an_assignment_do_not_depend_on_the_rows_beside_it(
    q8_rig: Rig, k: int, dtype: str
) -> None:
    of = MoeConfig(9, 3, 8, norm_topk_prob=True)
    whole = of_experts.Case(k, 146, dtype, of, rows=128, bucket=128, norm=True, gated=True)
    of_experts.expect_bits_of_one_row(q8_rig, whole)
