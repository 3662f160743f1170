"""Merging splits of attention, against the float64 twin."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu.checks.attention import MergeCase, check_attention_merge
from gpu.webgpu.kernels import Kernels
from tests.gpu.ops.rig import Rig

pytestmark = pytest.mark.parity


@pytest.mark.parametrize("heads", [(1, 4), (3, 20), (9, 64)], ids=str)
@pytest.mark.parametrize("n_splits", [1, 2, 5, 11])
def test_splits_are_merged_in_their_order(rig: Rig, n_splits: int, heads: tuple[int, int]) -> None:
    """Each after the one before, and alike however many are loaded ahead."""
    one, eight = (
        check_attention_merge(ahead_rig(rig, ahead), MergeCase(n_splits, *heads))
        for ahead in (1, 8)
    )
    assert one == eight


def ahead_rig(rig: Rig, ahead: int) -> Rig:
    """Return a rig whose merges load `ahead` splits before they merge the first."""
    device = replace(rig.device, policy=replace(rig.device.policy, merge_ahead=ahead))
    return Rig(device, Kernels(device))
