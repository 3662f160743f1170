"""Intervention ops against their float64 twins: in place, and exact where nothing changes."""

from __future__ import annotations

import numpy as np
import pytest

from gpu import ops
from gpu.reference import ops as reference
from gpu.webgpu.buffers import Tensor
from tests.gpu.ops.rig import ROUNDING, Array, Output, Rig, compare, llama_config, rows_at

pytestmark = pytest.mark.parity

SLOTS = [0, 3, 1, 0, 3]
POSITIONS = [0, 7, 2, 5, 6]
N_SLOTS = 4
WIDTHS = [1, 4, 13, 64, 100, 257, 576]


def in_place(rig: Rig, name: str, x: Array) -> Output:
    """An input that is also the result; everything beside it must not change."""
    tensor = rig.input(name, x)
    return Output(rig.memory, tensor, rig.memory.read(tensor), *x.shape)


def table(rig: Rig, name: str, rows: Array) -> Tensor:
    return rig.memory.upload(name, np.ascontiguousarray(rows, np.float32))


def normal(rng: np.random.Generator, *shape: int) -> Array:
    return rng.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("heads", [(1, 4), (5, 12), (9, 64), (3, 80), (13, 8)], ids=str)
def test_heads_are_scaled_by_the_factors_of_their_rows_slot(
    rig: Rig, heads: tuple[int, int]
) -> None:
    n_heads, head_dim = heads
    rng = np.random.default_rng(n_heads)
    x, factors = normal(rng, len(SLOTS), n_heads * head_dim), normal(rng, N_SLOTS, n_heads)
    factors[0, 0] = 0
    factors[3] = 1
    x[0, :head_dim] = np.nan  # switched off
    out, batch = in_place(rig, "x", x), rig.batch(rows_at(POSITIONS, SLOTS), bucket=8)
    config, factors_ = llama_config(n_heads=n_heads, head_dim=head_dim), table(rig, "f", factors)
    rig.run(lambda rec: ops.scale_heads(rec, batch, "heads", config, factors_, out.tensor))
    x[0, :head_dim] = 0
    got = out.read()
    parts = x.reshape(-1, n_heads, head_dim).astype(np.float64)
    want = reference.scale_heads(parts, factors.astype(np.float64), np.array(SLOTS))
    want = want.reshape(got.shape)
    compare("scale_heads", heads, got, want, 2 * ROUNDING * np.abs(want), n_heads)
    of_3 = np.array(SLOTS) == 3
    assert np.array_equal(got[of_3].view("u4"), x[of_3].view("u4"))


@pytest.mark.parametrize("part", ops.SUBLAYERS)
@pytest.mark.parametrize("k", WIDTHS)
def test_updates_are_scaled_by_the_factor_of_their_rows_slot(rig: Rig, k: int, part: str) -> None:
    rng = np.random.default_rng(k)
    before, update = normal(rng, len(SLOTS), k), normal(rng, len(SLOTS), k)
    factors = normal(rng, N_SLOTS, len(ops.SUBLAYERS))
    factors[0], factors[1] = 1, 0
    off, on = np.array(SLOTS) == 1, np.array(SLOTS) == 0
    update[off] = np.inf  # switched off
    out, batch = rig.output("after", len(SLOTS), k), rig.batch(rows_at(POSITIONS, SLOTS), bucket=8)
    tensors = rig.input("before", before), rig.input("update", update), table(rig, "f", factors)
    rig.run(lambda rec: ops.scale_residual(rec, batch, "update", part, *tensors, out.tensor))
    got, index = out.read(), ops.SUBLAYERS.index(part)
    update[off] = 0
    doubles = (a.astype(np.float64) for a in (before, update, factors[:, index]))
    want = reference.scale_residual(*doubles, np.array(SLOTS))
    size = np.abs(before) + np.abs(factors[SLOTS, index][:, None] * update)
    compare("scale_residual", (k, part), got, want, 3 * ROUNDING * size, k)
    assert np.array_equal(got[off].view("u4"), before[off].view("u4"))
    assert np.array_equal(got[on].view("u4"), (before + update)[on].view("u4"))


@pytest.mark.parametrize("k", WIDTHS)
def test_rows_are_steered_or_replaced_by_their_slots_vector(rig: Rig, k: int) -> None:
    rng = np.random.default_rng(k)
    x, vectors = normal(rng, len(SLOTS), k), normal(rng, N_SLOTS, k)
    vectors[1] = 0
    vectors[3, ::2] = 0
    x[2] = -0.0
    keeps = np.array([[0], [1], [1], [1]], np.float32)
    replaced = np.array(SLOTS) == 0
    x[replaced] = np.nan  # NaN must be replaced, too
    whole = np.zeros((N_SLOTS, rig.input("width", x).shape[1]), np.float32)
    whole[:, :k] = vectors
    out, batch = in_place(rig, "x", x), rig.batch(rows_at(POSITIONS, SLOTS), bucket=8)
    vectors_, keeps_ = rig.memory.upload("vectors", whole), rig.memory.upload("keeps", keeps)
    rig.run(lambda rec: ops.steer(rec, batch, "steer", vectors_, keeps_, out.tensor))
    got = out.read()
    doubles = (a.astype(np.float64) for a in (x, vectors, keeps[:, 0]))
    want = reference.steer(*doubles, np.array(SLOTS))
    compare("steer", k, got, want, 2 * ROUNDING * np.abs(want), k)
    assert np.array_equal(got[replaced], vectors[np.array(SLOTS)[replaced]])
    kept = want == x  # zeros of vectors
    assert kept.any()
    assert not kept.all()
    assert np.array_equal(got[kept].view("u4"), x[kept].view("u4"))
