"""Norms of the experts' outputs, against the float64 twin."""

from __future__ import annotations

import pytest

from gpu.checks.moe import check_moe_expert_norms
from tests.gpu.ops.rig import Rig

pytestmark = pytest.mark.parity


@pytest.mark.parametrize(
    ("n_rows", "bucket", "experts_per_token"), [(1, 1, 1), (3, 4, 2), (7, 8, 3)]
)
@pytest.mark.parametrize("k", [1, 37, 256, 1000])
def test_norms_equal_the_reference(
    rig: Rig, n_rows: int, bucket: int, experts_per_token: int, k: int
) -> None:
    check_moe_expert_norms(rig, n_rows, bucket, experts_per_token, k)
