"""Matmul with everything that is fused into it, against the float64 twin."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from gpu.checkpoint.packing import FORMATS
from gpu.checks.matmul import (
    FLAGS,
    MatmulCase,
    MatmulNumbers,
    check_matmul,
    expected_matmul,
    run_matmul,
)
from gpu.plans.plan_cache import ROW_BUCKETS
from gpu.tuning.tile_choices import tile_choices
from gpu.webgpu.device_policy import ROWS
from gpu.webgpu.tiling import GPU
from tests.gpu.ops.rig import TUNINGS, Rig, tuned

pytestmark = pytest.mark.parity

DTYPES = tuple(FORMATS)


# Software tiles are 4 or 8 wide in workgroups of 8 (32 and 64 columns), GPU tiles 2 or 4 wide, some
# in a workgroup; blocks are of 32.
SIZES = [
    (1, 1), (1, 33), (7, 31), (8, 32), (9, 34), (13, 63), (17, 65), (64, 128), (64, 512),
    (172, 64), (251, 127), (257, 40), (64, 1023), (64, 1024), (12, 1025), (1031, 2),
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("k", "n"), SIZES)
def test_every_size_equals_the_reference(rig: Rig, k: int, n: int, dtype: str) -> None:
    check_matmul(rig, MatmulCase(k, n, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tuning", ["loads", "gpu"])
@pytest.mark.parametrize(("k", "n"), [(20, 1), (33, 15), (500, 16), (576, 17), (1100, 33)])
def test_every_size_equals_the_reference_in_every_tiling(
    rig: Rig, k: int, n: int, tuning: str, dtype: str
) -> None:
    rig = tuned(rig, tuning)
    check_matmul(rig, MatmulCase(k, n, dtype, rows=1, bucket=1, norm=True))
    check_matmul(rig, MatmulCase(k, n, dtype, rows=5, bucket=8))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("first", list(product([False, True], repeat=3)), ids=str)
@pytest.mark.parametrize("others", list(product([False, True], repeat=len(FLAGS) - 3)), ids=str)
def test_every_combination_of_flags(
    rig: Rig, first: tuple[bool, ...], others: tuple[bool, ...], dtype: str
) -> None:
    chosen = dict(zip(FLAGS, first + others, strict=True))
    check_matmul(rig, MatmulCase(13, 34, dtype, **chosen, seed=1))


@pytest.mark.parametrize("tuning", TUNINGS)
@pytest.mark.parametrize("bucket", [bucket for bucket in ROW_BUCKETS if bucket <= ROWS])
def test_every_row_bucket_full_and_not(rig: Rig, bucket: int, tuning: str) -> None:
    check_bucket(rig, bucket, tuning)


@pytest.mark.parametrize("bucket", [bucket for bucket in ROW_BUCKETS if bucket > ROWS])
def test_the_largest_row_buckets_of_a_gpu(rig: Rig, bucket: int) -> None:
    check_bucket(rig, bucket, "gpu")


def check_bucket(rig: Rig, bucket: int, tuning: str) -> None:
    for rows in {1, bucket // 2 + 1, bucket - 1 or 1, bucket}:
        case = MatmulCase(74, 37, rows=rows, bucket=bucket, norm=True, residual=True)
        check_matmul(tuned(rig, tuning), case)


@pytest.mark.parametrize(
    "dtype",
    [dtype if dtype == "q8" else pytest.param(dtype, marks=pytest.mark.slow) for dtype in DTYPES],
)
@pytest.mark.parametrize("rows", [101, pytest.param(128, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_the_largest_tiles_have_the_bits_of_smaller_ones(rig: Rig, dtype: str, rows: int) -> None:
    """They take as many columns as give every multiprocessor of a large GPU a workgroup."""
    rig, case = tuned(rig, "gpu"), MatmulCase(70, 8200, dtype, rows=rows, bucket=128, residual=True)
    assert GPU.tile(128, 8200, 3, may_share=True).group == (128, 64)
    numbers = MatmulNumbers.of(case)
    large = run_matmul(rig, case, numbers)
    rig.compare(f"matmul.{dtype}", case, large, *expected_matmul(case, numbers))
    small_tiles = rig.on(replace(rig.device, tuning=replace(GPU, shared_m=4)))
    small = run_matmul(small_tiles, case, numbers)
    assert np.array_equal(large.view(np.uint32), small.view(np.uint32))


@pytest.mark.parametrize(
    ("dtype", "n_rows", "changes"),
    [
        (choice.dtype, n_rows, changes)
        for choice in tile_choices(GPU, max_rows=128)
        for changes in choice.alternatives
        for n_rows in choice.rows
        if n_rows < 128 and "q8_activations" not in changes  # those of prompts are above
    ],
    ids=str,
)
def test_tiles_that_a_gpu_may_choose_have_the_bits_of_the_default(
    rig: Rig, dtype: str, n_rows: int, changes: dict[str, Any]
) -> None:
    case = MatmulCase(1100, 70, dtype, rows=n_rows, bucket=n_rows, norm=True, residual=True)
    numbers = MatmulNumbers.of(case)
    assert replace(GPU, **changes) != GPU
    default, other = (
        run_matmul(rig.on(replace(rig.device, tuning=tuning)), case, numbers).view(np.uint32)
        for tuning in (GPU, replace(GPU, **changes))
    )
    assert np.array_equal(default, other)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize("shards", [2, 5])
def test_a_matrix_cut_into_shards(rig: Rig, shards: int, gated: bool, dtype: str) -> None:
    check_matmul(
        rig, MatmulCase(27, 102, dtype, bias=True, gated=gated, residual=True, shards=shards)
    )


@pytest.mark.parametrize("scale", [1e-8, 1e-3, 1e4, 1e12])
def test_small_and_large_activations(rig: Rig, scale: float) -> None:
    check_matmul(rig, MatmulCase(40, 36, norm=True, scale=scale))
    check_matmul(rig, MatmulCase(40, 36, norm=True, gated=True, bias=True, scale=scale))


@pytest.mark.smoke
def test_silu_of_gates_that_overflow_exp(rig: Rig) -> None:
    check_matmul(rig, MatmulCase(8, 64, gated=True, activation="silu", scale=300.0))


@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "gelu", "relu"])
@pytest.mark.parametrize("scale", [0.1, 1.0, 4.0, 300.0])
def test_activations(rig: Rig, activation: str, scale: float, gated: bool) -> None:
    check_matmul(
        rig, MatmulCase(20, 66, bias=True, activation=activation, gated=gated, scale=scale)
    )


def test_a_scale_and_a_soft_cap(rig: Rig) -> None:
    check_matmul(rig, MatmulCase(20, 33, residual=True, factor=0.22))
    for scale in (0.01, 3.0, 1e6):
        check_matmul(
            rig, MatmulCase(33, 20, norm=True, gather=True, cap=3.0, factor=0.5, scale=scale)
        )


STORIES260K = {"qkv": (64, 128), "gate_up": (64, 344), "down": (172, 64), "head": (64, 512)}
SMOLLM2_135M = {"qkv": (576, 960), "gate_up": (576, 3072), "down": (1536, 576)}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("k", "n"), [*STORIES260K.values(), *SMOLLM2_135M.values()], ids=str)
def test_shapes_of_real_models(rig: Rig, k: int, n: int, dtype: str) -> None:
    check_matmul(rig, MatmulCase(k, n, dtype, norm=True, residual=True))


def test_the_widest_mlp_of_any_llama(rig: Rig) -> None:
    """A device that ends loops early, as Mesa's software device does, would show."""
    if rig.device.checked:
        pytest.skip("checks keep loops rolled up, and Mesa's software device ends long ones")
    check_matmul(rig, MatmulCase(53_248, 16, "f16", rows=8, bucket=8, residual=True))


def test_the_output_head_of_smollm2_135m(rig: Rig) -> None:
    check_matmul(rig, MatmulCase(576, 49152, "f16", rows=2, bucket=2, norm=True, gather=True))


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "gated"), [("f32", True), ("q4", False)])
@pytest.mark.parametrize("tuning", TUNINGS)
def test_a_rows_bits_do_not_depend_on_tile_bucket_shards_or_the_rows_beside_it(
    rig: Rig, tuning: str, dtype: str, gated: bool
) -> None:
    most = ROW_BUCKETS[-1] if tuning == "gpu" else ROWS
    whole = MatmulCase(
        1100, 134, dtype, rows=most, bucket=most, norm=True, bias=True, residual=True, gated=gated
    )
    rig, numbers = tuned(rig, tuning), MatmulNumbers.of(whole)
    together = run_matmul(rig, whole, numbers)
    rng = np.random.default_rng(7)
    for bucket in ROW_BUCKETS[: ROW_BUCKETS.index(most) + 1]:
        rows = rng.permutation(most)[:bucket]
        part = replace(numbers, x=numbers.x[rows], residual=numbers.residual[rows])
        case = replace(whole, rows=bucket, bucket=bucket, shards=3 if bucket in (2, 16) else 1)
        apart = run_matmul(rig, case, part)
        same = apart.view(np.uint32) == together[rows].view(np.uint32)
        assert same.all(), f"{case}: row {np.argwhere(~same)[0][0]} differs from that of all rows"
