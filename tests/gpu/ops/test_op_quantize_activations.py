"""int8 activations, and matmuls with them, against their float64 twins.

Where a number lies between two bytes, the last bit of a float32 decides which it becomes. So the
bytes are held to what they were rounded from, and products to the bytes they were given."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpu import ops
from gpu.checks.matmul import MatmulCase, MatmulNumbers, check_matmul, run_matmul
from gpu.checks.moe import ExpertsCase, check_moe_matmul
from gpu.checks.quantize_activations import (
    check_quantize_activations,
    quantize,
    unpack_quantized_rows,
)
from gpu.checks.rig import normal, plain_rows
from gpu.config import MoeConfig
from gpu.ops.quantize_activations import quantized_row_words
from gpu.webgpu.plan import Recorder
from gpu.webgpu.tiling import GPU
from tests.gpu.ops.rig import Rig, as_kind
from tests.gpu.ops.test_op_moe import expect_bits_of_one_row

pytestmark = pytest.mark.parity


# ---- rounding ----------------------------------------------------------------------------------


@pytest.mark.parametrize("even_odd", [False, True], ids=["in_order", "even_odd"])
@pytest.mark.parametrize("software", [True, False], ids=["software", "gpu"])
def test_activations_are_rounded_to_the_nearest_int8(
    rig: Rig, software: bool, even_odd: bool
) -> None:
    rig = rig.on(as_kind(rig.device, software))
    for rows in (
        (1, 1.0, True), (31, 1e-8, True), (64, 1e4, False), (97, 1.0, False), (1100, 30.0, True),
    ):  # fmt: skip
        check_quantize_activations(rig, rows, even_odd)


@pytest.mark.parametrize("k", [1, 31, 97, 128, 1100])
@pytest.mark.slow
def test_the_bits_do_not_depend_on_the_workgroups_of_a_row(rig: Rig, k: int) -> None:
    rng = np.random.default_rng(k)
    x, gain = normal(rng, 5, k), normal(rng, k)
    for norm in (None, gain):
        alone, shared = (
            quantize(with_workgroups(rig, n), x, norm, even_odd=True) for n in (1, 5 * 128)
        )
        assert np.array_equal(alone, shared)


def test_a_row_is_rounded_by_several_workgroups_on_a_gpu(rig: Rig) -> None:
    gpu = rig.on(as_kind(rig.device, software=False))
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
    return rig.on(replace(rig.device, policy=policy))


def grids(rig: Rig, n_rows: int) -> list[tuple[int, int, int]]:
    """Return the grid of rounding rows of 4,096 numbers."""
    k, rec = 4096, Recorder(rig.device, rig.kernels)
    x = rig.input("x", np.zeros((n_rows, k), np.float32))
    y = rig.memory.zeros("y", (n_rows, quantized_row_words(k)), "u32")
    batch = rig.batch(plain_rows(n_rows), bucket=n_rows)
    ops.quantize_activations(rec, batch, "bytes", x, k, y, even_odd=False)
    return [dispatch.grid for dispatch in rec.plan.dispatches]


def test_rows_of_expert_assignments(rig: Rig) -> None:
    x = normal(np.random.default_rng(0), 6, 40)
    assert np.array_equal(quantize(rig, x, each=3), quantize(rig, x))


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_non_finite_activations_are_not_hidden(rig: Rig, wrong: float) -> None:
    x = np.ones((2, 70), np.float32)
    x[1, 40] = wrong
    _, scales, _ = unpack_quantized_rows(quantize(rig, x))
    assert np.isfinite(scales[0]).all()
    assert np.argwhere(~np.isfinite(scales[1])).tolist() == [[1, 0]]


# ---- products ----------------------------------------------------------------------------------


@pytest.fixture(params=["own", "gpu"])
def q8_rig(rig: Rig, request: pytest.FixtureRequest) -> Rig:
    """A device with int8 matmuls, with its own tiling or that of GPUs."""
    tuning = rig.device.tuning if request.param == "own" else GPU
    return rig.on(replace(rig.device, tuning=replace(tuning, q8_activations=True)))


@pytest.mark.parametrize("dtype", ["q8", "q4"])
@pytest.mark.parametrize(("k", "n"), [(1, 1), (33, 34), (251, 127), (1100, 33)])
def test_q8_matmul_of_every_size(q8_rig: Rig, k: int, n: int, dtype: str) -> None:
    check_matmul(q8_rig, MatmulCase(k, n, dtype, rows=1, bucket=1))
    check_matmul(q8_rig, MatmulCase(k, n, dtype, rows=5, bucket=8, norm=True))
    check_matmul(q8_rig, MatmulCase(k, n, dtype, rows=67, bucket=128, norm=True))


@pytest.mark.parametrize("dtype", ["q8", "q4"])
def test_norm_bias_gate_and_residual_fused_into_q8_matmul(q8_rig: Rig, dtype: str) -> None:
    for case in (
        MatmulCase(40, 70, dtype, norm=True, bias=True, gated=True),
        MatmulCase(70, 66, dtype, bias=True, residual=True, activation="gelu_tanh", shards=3),
        MatmulCase(40, 70, dtype, rows=40, bucket=64, norm=True, bias=True, gated=True, shards=2),
    ):
        check_matmul(q8_rig, case)


@pytest.mark.parametrize("dtype", ["q8", "q4"])
@pytest.mark.parametrize("k", [20, 300, 1100])
@pytest.mark.slow
def test_a_rows_bits_do_not_depend_on_the_rows_beside_it(q8_rig: Rig, k: int, dtype: str) -> None:
    whole = MatmulCase(k, 70, dtype, rows=128, bucket=128, norm=True, residual=True)
    numbers = MatmulNumbers.of(whole)
    together = run_matmul(q8_rig, whole, numbers)
    for bucket in (1, 2, 4, 8, 16, 32, 64):
        rows = np.random.default_rng(bucket).permutation(128)[:bucket]
        part = replace(numbers, x=numbers.x[rows], residual=numbers.residual[rows])
        case = replace(whole, rows=bucket, bucket=bucket, shards=3 if bucket == 4 else 1)
        apart = run_matmul(q8_rig, case, part)
        same = apart.view(np.uint32) == together[rows].view(np.uint32)
        assert same.all(), f"{bucket} rows differ from what they are among 128"


@pytest.mark.parametrize("dtype", ["q8", "q4"])
@pytest.mark.slow
def test_the_largest_tiles_of_int8_rows_have_the_bits_of_smaller_ones(rig: Rig, dtype: str) -> None:
    """They have 128 rows, and leave enough workgroups."""
    tuning = replace(GPU, q8_activations=True)
    assert tuning.tile(128, 8200, 3, may_share=True).group == (128, 64)
    case = MatmulCase(70, 8200, dtype, rows=128, bucket=128, residual=True)
    numbers = MatmulNumbers.of(case)
    large, small, few = (
        run_matmul(rig.on(replace(rig.device, tuning=of)), part, p)
        for of, part, p in (
            (tuning, case, numbers),
            (replace(tuning, shared_m=4), case, numbers),
            (tuning, replace(case, rows=16, bucket=16), first_rows(numbers, 16)),
        )
    )
    assert np.array_equal(large.view(np.uint32), small.view(np.uint32))
    assert np.array_equal(large[:16].view(np.uint32), few.view(np.uint32))


def first_rows(numbers: MatmulNumbers, n: int) -> MatmulNumbers:
    return replace(numbers, x=numbers.x[:n], residual=numbers.residual[:n])


@pytest.mark.parametrize(("dtype", "per_assignment"), [("q8", True), ("q4", False), ("q4", True)])
@pytest.mark.parametrize("bucket", [1, 16, 128], ids=["alone", "grouped", "shared"])
def test_q8_matmul_of_experts(q8_rig: Rig, bucket: int, dtype: str, per_assignment: bool) -> None:
    case = ExpertsCase(
        70, 38, dtype, rows=bucket, bucket=bucket, norm=not per_assignment,
        per_assignment=per_assignment,
    )  # fmt: skip
    check_moe_matmul(q8_rig, case)


@pytest.mark.parametrize("dtype", ["q8", "q4"])
@pytest.mark.parametrize("k", [20, 70, 300])
@pytest.mark.slow
def test_the_bits_of_an_assignment_do_not_depend_on_the_rows_beside_it(
    q8_rig: Rig, k: int, dtype: str
) -> None:
    of = MoeConfig(9, 3, 8, norm_topk_prob=True)
    whole = ExpertsCase(k, 146, dtype, of, rows=128, bucket=128, norm=True, gated=True)
    expect_bits_of_one_row(q8_rig, whole)
