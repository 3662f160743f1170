"""Intervention ops against their float64 twins: in place, and exact where nothing changes."""

from __future__ import annotations

import pytest

from gpu import ops
from gpu.checks.rows import check_scale_heads, check_scale_residual, check_steer
from tests.gpu.ops.rig import Rig

pytestmark = pytest.mark.parity

WIDTHS = [1, 4, 13, 64, 100, 257, 576]


@pytest.mark.parametrize("heads", [(1, 4), (5, 12), (9, 64), (3, 80), (13, 8)], ids=str)
def test_heads_are_scaled_by_the_factors_of_their_rows_slot(
    rig: Rig, heads: tuple[int, int]
) -> None:
    check_scale_heads(rig, *heads)


@pytest.mark.parametrize("part", ops.SUBLAYERS)
@pytest.mark.parametrize("k", WIDTHS)
def test_updates_are_scaled_by_the_factor_of_their_rows_slot(rig: Rig, k: int, part: str) -> None:
    check_scale_residual(rig, k, part)


@pytest.mark.parametrize("k", WIDTHS)
def test_rows_are_steered_or_replaced_by_their_slots_vector(rig: Rig, k: int) -> None:
    check_steer(rig, k)
