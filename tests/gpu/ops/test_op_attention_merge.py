"""Merging splits of attention, against the float64 twin."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpu import ops
from gpu.ops.batch import STATE_FLOATS, KvSplits
from gpu.reference import ops as reference
from gpu.webgpu.buffers import padded
from gpu.webgpu.kernels import Kernels
from tests.gpu.ops.rig import POISON, ROUNDING, Rig, compare, llama_config, rows_at

pytestmark = pytest.mark.parity
SPLIT = 16


@pytest.mark.parametrize("heads", [(1, 4), (3, 20), (9, 64)], ids=str)
@pytest.mark.parametrize("n_splits", [1, 2, 5, 11])
def test_splits_are_merged_in_their_order(rig: Rig, n_splits: int, heads: tuple[int, int]) -> None:
    """Each after the one before, and alike however many are loaded ahead."""
    one, eight = (merged_bits(ahead_rig(rig, ahead), n_splits, heads) for ahead in (1, 8))
    assert one == eight


def ahead_rig(rig: Rig, ahead: int) -> Rig:
    """Return a rig whose merges load `ahead` splits before they merge the first."""
    device = replace(rig.device, policy=replace(rig.device.policy, merge_ahead=ahead))
    return Rig(device, Kernels(device))


def merged_bits(rig: Rig, n_splits: int, heads: tuple[int, int]) -> bytes:
    """Merge random splits, compare the result with its twin, and return its bits."""
    n_heads, head_dim = heads
    config = llama_config(n_heads=n_heads, head_dim=head_dim)
    rng = np.random.default_rng(n_splits)
    rows = rows_at([n_splits * SPLIT - 1] * 3)
    most = rig.device.policy.split_rows
    shape = (n_splits, most, n_heads)
    states = np.empty((*shape, STATE_FLOATS), np.float32)
    states[..., 0] = rng.normal(size=shape) * 10
    states[..., 1] = rng.uniform(1, SPLIT, shape)
    states[..., 2] = -rng.uniform(0, 3, shape) * states[..., 1]
    values = rng.normal(size=(*shape, head_dim)).astype(np.float32)
    width = n_heads * head_dim
    whole = np.full((n_splits, most, padded(width)), POISON, np.uint32).view(np.float32)
    whole[..., :width] = values.reshape(n_splits, most, width)
    splits = KvSplits(
        n_splits,
        replace(rig.memory.upload("values", whole), shape=(n_splits * most, padded(width))),
        rig.memory.upload("states", states),
    )
    out, bits = rig.output("out", 3, width), rig.output("entropy", 3, n_heads, stride=n_heads)
    batch = rig.batch(rows)
    rig.run(
        lambda rec: ops.attention_merge(
            rec, batch, "merge", config, splits, SPLIT, out.tensor, bits.tensor
        )
    )
    exact = states[:, :3].astype(np.float64)
    want, entropy = reference.attention_merge(values[:, :3].astype(np.float64), exact)
    # The error of a power of two is about the rounding of its exponent, at most 60 bits here;
    # that of the largest, which counts most, is 0.
    error = (n_splits + 4) * ROUNDING
    largest = np.abs(values).max() * n_splits / exact[..., 1].min()
    case = f"{n_splits}x{n_heads}x{head_dim}"
    compare("attention_merge.out", case, out.read(), want.reshape(3, -1), error * largest, 0)
    compare("attention_merge.entropy", case, bits.read(), entropy, error * 10, 0)
    return out.read().tobytes() + bits.read().tobytes()
