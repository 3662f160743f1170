"""The ops of mixtures of experts against their float64 twins."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpu.checkpoint.packing import FORMATS
from gpu.checks.moe import (
    ExpertsCase,
    ExpertsNumbers,
    check_moe_combine,
    check_moe_matmul,
    check_moe_permute,
    check_moe_topk,
    moe_topk,
    run_experts,
)
from gpu.config import MoeConfig
from gpu.ops.moe_routing import max_tiles, tile_assignments
from gpu.plans.plan_cache import ROW_BUCKETS
from gpu.webgpu.tiling import GPU
from tests.gpu.ops.rig import TUNINGS, Rig, tuned

pytestmark = pytest.mark.parity


# ---- moe_topk --------------------------------------------------------------------------


@pytest.mark.parametrize("norm_topk_prob", [False, True], ids=["of_all", "normalised"])
@pytest.mark.parametrize(
    ("n", "experts_per_token"),
    [(1, 1), (2, 1), (8, 2), (5, 5), (60, 4), (64, 8), (128, 8), (1024, 32)],
)
def test_the_experts_of_the_largest_logits_are_chosen(
    rig: Rig, n: int, experts_per_token: int, norm_topk_prob: bool
) -> None:
    check_moe_topk(rig, n, experts_per_token, norm_topk_prob)


@pytest.mark.parametrize("norm_topk_prob", [False, True], ids=["of_all", "normalised"])
@pytest.mark.parametrize(
    ("n", "experts_per_token", "n_off"), [(2, 1, 1), (8, 2, 3), (60, 4, 56), (1024, 32, 500)]
)
def test_experts_that_are_off_are_left_out(
    rig: Rig, n: int, experts_per_token: int, n_off: int, norm_topk_prob: bool
) -> None:
    check_moe_topk(rig, n, experts_per_token, norm_topk_prob, n_off)


def test_a_table_with_all_experts_on_changes_no_bit(rig: Rig) -> None:
    of = MoeConfig(9, 3, 8, norm_topk_prob=False)
    logits = np.random.default_rng(0).normal(size=(5, 9)).astype(np.float32)
    plain, masked = moe_topk(rig, logits, of), moe_topk(rig, logits, of, np.ones((2, 9), "f4"))
    for one, other in zip(plain, masked, strict=True):
        assert np.array_equal(one.view("u4"), other.view("u4"))


@pytest.mark.smoke
def test_of_equal_logits_the_smaller_id_is_chosen(rig: Rig) -> None:
    of = MoeConfig(12, 3, 8, norm_topk_prob=True)
    logits = np.zeros((3, 12), np.float32)
    logits[1, [4, 9, 11]] = 1.0
    logits[2] = np.repeat([-1e30, 2.0, -1e30], 4)
    ids, gates = moe_topk(rig, logits, of)
    assert ids.tolist() == [[0, 1, 2], [4, 9, 11], [4, 5, 6]]
    assert np.allclose(gates, 1 / 3)


def test_logits_far_apart(rig: Rig) -> None:
    of = MoeConfig(4, 2, 8, norm_topk_prob=False)
    logits = np.array([[1e30, -1e30, 0, 1e29], [-200, -100, -300, -400]], np.float32)
    ids, gates = moe_topk(rig, logits, of)
    assert ids.tolist() == [[0, 3], [1, 0]]
    assert np.allclose(gates, [[1, 0], [1, 0]], atol=1e-30)


def test_logits_that_are_not_numbers_give_no_two_experts_one_place(rig: Rig) -> None:
    """The places would race, and one of them would keep the experts of the step before."""
    of = MoeConfig(6, 3, 8, norm_topk_prob=True)
    nan = np.nan
    logits = np.array([[nan] * 6, [nan, 1, nan, 3, nan, nan], [0, 1, nan, 2, 3, 4]], np.float32)
    ids, gates = moe_topk(rig, logits, of)
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
    check_moe_permute(tuned(rig, tuning), rows, bucket, n, experts_per_token)


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


# ---- experts ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "tuning"),
    [*((d, tuning) for tuning in ("own", "gpu") for d in FORMATS), ("f32", "loads")],
)
@pytest.mark.parametrize("bucket", [1, 64, 128], ids=["alone", "grouped", "shared"])
def test_matmul_of_assignments_with_the_weights_of_their_experts(
    rig: Rig, bucket: int, tuning: str, dtype: str
) -> None:
    rig, rows = tuned(rig, tuning), max(1, bucket - 1)
    check_moe_matmul(
        rig, ExpertsCase(70, 38, dtype, rows=rows, bucket=bucket, norm=True, gated=True)
    )
    check_moe_matmul(rig, ExpertsCase(33, 19, dtype, rows=rows, bucket=bucket, per_assignment=True))
    check_moe_matmul(rig, ExpertsCase(33, 139, dtype, rows=rows, bucket=bucket, norm=True))


@pytest.mark.parametrize("bucket", [1, 16], ids=["alone", "grouped"])
def test_bias_of_assignments(rig: Rig, bucket: int) -> None:
    """The bias is added before the activation, in the order of assignments however they are
    grouped, in shards too."""
    rows = max(1, bucket - 1)
    check_moe_matmul(
        rig, ExpertsCase(33, 22, "q8", rows=rows, bucket=bucket, bias=True, norm=True, gated=True)
    )
    check_moe_matmul(
        rig, ExpertsCase(64, 19, rows=rows, bucket=bucket, bias=True, per_assignment=True, shards=3)
    )


@pytest.mark.parametrize("bucket", [2, 32])
def test_weights_in_shards_and_in_other_slots(rig: Rig, bucket: int) -> None:
    places = (3, 0, 5, 1, 4, 2)
    check_moe_matmul(
        rig,
        ExpertsCase(64, 32, "q8", rows=bucket, bucket=bucket, norm=True, gated=True, places=places),
    )
    check_moe_matmul(
        rig, ExpertsCase(64, 32, "f16", rows=bucket, bucket=bucket, shards=3, places=places)
    )


@pytest.mark.parametrize(
    ("dtype", "tuning"), [*((d, "gpu") for d in FORMATS), ("q8", "own"), ("q8", "loads")]
)
@pytest.mark.slow
def test_the_bits_of_an_assignment_do_not_depend_on_the_rows_beside_it(
    rig: Rig, dtype: str, tuning: str
) -> None:
    of = MoeConfig(9, 3, 8, norm_topk_prob=True)
    whole = ExpertsCase(96, 146, dtype, of, rows=128, bucket=128, norm=True, gated=True)
    expect_bits_of_one_row(tuned(rig, tuning), whole)


def expect_bits_of_one_row(rig: Rig, whole: ExpertsCase) -> None:
    """Fail unless every step of fewer rows, so every size of tile, gives each row the bits that it
    has among all."""
    numbers, of = ExpertsNumbers.of(whole), whole.of
    together = run_experts(rig, whole, numbers).reshape(whole.rows, of.experts_per_token, -1)
    rng = np.random.default_rng(7)
    for bucket in (b for b in ROW_BUCKETS if b < whole.bucket):
        rows = rng.permutation(whole.rows)[:bucket]
        part = replace(numbers, x=numbers.x[rows], chosen=numbers.chosen[rows])
        apart = run_experts(rig, replace(whole, rows=bucket, bucket=bucket), part)
        same = apart.view(np.uint32) == together[rows].reshape(apart.shape).view(np.uint32)
        assert same.all(), f"{bucket} rows differ from what they give among {whole.rows}"


def test_tiles_are_single_assignments_then_about_an_experts_share_then_64() -> None:
    of = MoeConfig(9, 3, 8, norm_topk_prob=True)
    sizes = [tile_assignments(GPU, of, n_rows) for n_rows in (1, 2, 4, 8, 16, 32, 64, 128, 512)]
    assert sizes == [1, 1, 1, 2, 4, 8, 16, 64, 64]


def test_tiles_of_64_assignments_cannot_fold_in_a_norm(rig: Rig) -> None:
    case = ExpertsCase(33, 19, rows=128, bucket=128, norm=True, per_assignment=True)
    with pytest.raises(ValueError, match="tiles of 64 assignments cannot fold in a norm"):
        run_experts(tuned(rig, "gpu"), case, ExpertsNumbers.of(case))


# ---- moe_combine -------------------------------------------------------------------------


@pytest.mark.parametrize("width", [32, 70, 300])
@pytest.mark.parametrize("has_shared", [False, True], ids=["routed", "shared"])
def test_outputs_of_experts_are_weighted_and_added_up(
    rig: Rig, has_shared: bool, width: int
) -> None:
    for has_residual in (False, True):
        check_moe_combine(rig, width, has_shared, has_residual)
