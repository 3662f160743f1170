"""Norms of the residual stream, and cosines of its updates, against their float64 twin."""

from __future__ import annotations

import numpy as np
import pytest

from gpu import ops
from gpu.reference import ops as reference
from gpu.webgpu.buffers import Tensor, padded
from gpu.webgpu.device import Device
from gpu.webgpu.kernels import Kernels
from tests.gpu.ops.rig import ROUNDING, Array, Rig, as_kind, compare, llama_config, plain_rows

pytestmark = pytest.mark.parity


def arena(rig: Rig, name: str, states: Array, bucket: int) -> Tensor:
    """States one after the other, each of `bucket` padded rows and a gap; NaN where none is."""
    n, n_rows, k = states.shape
    stride = -(-bucket * padded(k) // 64) * 64
    whole = np.full((n, stride), np.nan, np.float32)
    rows = whole[:, : n_rows * padded(k)].reshape(n, n_rows, padded(k))
    rows[:] = 0
    rows[:, :, :k] = states
    whole[:, : rows[0].size] = rows.reshape(n, -1)
    return rig.memory.upload(name, whole)


# 8 lanes or 64 take four numbers at a time.
@pytest.mark.parametrize("software", [True, False], ids=["software", "gpu"])
@pytest.mark.parametrize("n_layers", [1, 5, 21])
@pytest.mark.parametrize("k", [1, 13, 64, 260, 576])
def test_norms_and_cosines_equal_the_reference(
    device: Device, kernels: Kernels, n_layers: int, k: int, software: bool
) -> None:
    rig = Rig(as_kind(device, software), kernels)
    seed = n_layers * 1000 + k
    rng = np.random.default_rng(seed)
    n_rows, bucket = 3, 4
    states = rng.normal(size=(n_layers + 1, n_rows, k)).astype(np.float32)
    resid_mid = rng.normal(size=(n_layers, n_rows, k)).astype(np.float32)
    config = llama_config(n_layers=n_layers, hidden_size=k)
    n_stats = 1 + 5 * n_layers
    stats = rig.output("stats", n_rows, n_stats, stride=n_stats)
    batch = rig.batch(plain_rows(n_rows), bucket=bucket)
    tensors = arena(rig, "states", states, bucket), arena(rig, "resid_mid", resid_mid, bucket)
    rig.run(lambda rec: ops.layer_stats(rec, batch, "stats", config, *tensors, stats.tensor))
    want = reference.layer_stats(states.astype(np.float64), resid_mid.astype(np.float64))
    size = np.where(is_cosine(n_layers), 2.0, want)
    bound = (8 + 4 * np.sqrt(k)) * ROUNDING * size
    compare("layer_stats", f"{n_layers} layers of {k}", stats.read(), want, bound, seed)


def is_cosine(n_layers: int) -> Array:
    """Mask of the cosines of a row: their error is absolute, not relative."""
    return np.array([False] + [False, False, False, True, True] * n_layers)


def test_updates_along_against_across_and_of_no_length(device: Device, kernels: Kernels) -> None:
    """Attention adds twice the stream, takes half of it, adds a right angle, and nothing; the MLP
    adds to nothing, which has no direction either."""
    rig = Rig(device, kernels)
    k = 6
    x = np.array([3.0, 0, 4, 0, 0, 12])
    updates = np.array([2 * x, -x / 2, [0, 5, 0, 1, 0, 0], 0 * x, -x])
    states, resid_mid = np.zeros((2, 5, k), np.float32), np.zeros((1, 5, k), np.float32)
    states[0], resid_mid[0] = x, x + updates
    states[1] = resid_mid[0]
    states[1, 4] = x
    config = llama_config(n_layers=1, hidden_size=k)
    stats = rig.output("stats", 5, 6, stride=6)
    batch = rig.batch(plain_rows(5), bucket=8)
    tensors = arena(rig, "states", states, 8), arena(rig, "resid_mid", resid_mid, 8)
    rig.run(lambda rec: ops.layer_stats(rec, batch, "stats", config, *tensors, stats.tensor))
    got = stats.read()
    np.testing.assert_allclose(got[:, 4], [1, -1, 0, 0, -1], atol=1e-6)
    assert not got[:, 5].any()
    assert (np.abs(got[:, 4:]) <= 1).all()
    want = reference.layer_stats(states.astype(np.float64), resid_mid.astype(np.float64))
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
