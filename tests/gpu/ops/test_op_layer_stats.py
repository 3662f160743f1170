"""Norms of the residual stream, and cosines of its updates, against their float64 twin."""

from __future__ import annotations

import numpy as np
import pytest

from gpu.checks.rows import check_layer_stats, layer_stats
from gpu.reference import ops as reference
from tests.gpu.ops.rig import Rig, as_kind

pytestmark = pytest.mark.parity


# 8 lanes or 64 take four numbers at a time.
@pytest.mark.parametrize("software", [True, False], ids=["software", "gpu"])
@pytest.mark.parametrize("n_layers", [1, 5, 21])
@pytest.mark.parametrize("k", [1, 13, 64, 260, 576])
def test_norms_and_cosines_equal_the_reference(
    rig: Rig, n_layers: int, k: int, software: bool
) -> None:
    check_layer_stats(rig.on(as_kind(rig.device, software)), n_layers, k)


def test_updates_along_against_across_and_of_no_length(rig: Rig) -> None:
    """Attention adds twice the stream, takes half of it, adds a right angle, and nothing; the MLP
    adds to nothing, which has no direction either."""
    x = np.array([3.0, 0, 4, 0, 0, 12])
    updates = np.array([2 * x, -x / 2, [0, 5, 0, 1, 0, 0], 0 * x, -x])
    states, resid_mid = np.zeros((2, 5, 6), np.float32), np.zeros((1, 5, 6), np.float32)
    states[0], resid_mid[0] = x, x + updates
    states[1] = resid_mid[0]
    states[1, 4] = x
    got = layer_stats(rig, states, resid_mid)
    np.testing.assert_allclose(got[:, 4], [1, -1, 0, 0, -1], atol=1e-6)
    assert not got[:, 5].any()
    assert (np.abs(got[:, 4:]) <= 1).all()
    want = reference.layer_stats(states.astype(np.float64), resid_mid.astype(np.float64))
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
