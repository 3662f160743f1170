"""Norms with dispatches of their own, QK norm with RoPE, and learned positions, against their
float64 twins."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from gpu import ops
from gpu.models.rope import rope_cos_sin
from gpu.ops import Norm
from gpu.reference import ops as reference
from tests.gpu.kv.cache import LAYER, Cache, Rows
from tests.gpu.ops.rig import (
    ROUNDING,
    Array,
    Rig,
    as_kind,
    compare,
    greedy,
    llama_config,
    plain_rows,
    rows_at,
)  # fmt: skip

pytestmark = pytest.mark.parity
EPS = 1e-5


@pytest.fixture(params=[True, False], ids=["software", "gpu"])
def kinds(rig: Rig, request: pytest.FixtureRequest) -> Rig:
    """Few lanes over a row, or many."""
    return Rig(as_kind(rig.device, software=request.param), rig.kernels)


# ---- norm --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NormCase:
    """`offset`: of x, in its own deviations."""

    width: int
    rows: int = 3
    bucket: int = 4
    centred: bool = False
    bias: bool = False
    residual: bool = False
    gather: bool = False
    scale: float = 1.0
    offset: float = 0.0


def check_norm(rig: Rig, case: NormCase) -> None:
    rng = np.random.default_rng(case.width)
    shape = case.rows, case.width
    x = ((rng.normal(size=shape) + case.offset) * case.scale).astype(np.float32)
    gain = rng.uniform(0.5, 1.5, case.width).astype(np.float32)
    bias = rng.normal(size=case.width).astype(np.float32)
    gathered = rng.permutation(case.rows)[:2]
    n_out = len(gathered) if case.gather else case.rows
    before = rng.normal(size=(n_out, case.width)).astype(np.float32)
    samples = [greedy(int(row)) for row in gathered] if case.gather else []
    batch = rig.batch(plain_rows(case.rows), samples, bucket=case.bucket)
    y = rig.output("y", n_out, case.width)
    of = Norm(
        rig.memory.upload("gain", gain), EPS, case.centred,
        rig.memory.upload("bias", bias) if case.bias else None,
    )  # fmt: skip
    residual = rig.input("residual", before) if case.residual else None
    given = rig.input("x", x)
    rig.run(
        lambda rec: ops.norm(
            rec, batch, "norm", of, case.width, given, y.tensor, residual=residual,
            gather=case.gather,
        )
    )  # fmt: skip
    rows = gathered if case.gather else None
    normed = reference.norm(
        x.astype(np.float64), gain.astype(np.float64), EPS, centred=case.centred, rows=rows
    )
    want = normed + bias.astype(np.float64) * case.bias + before * float(case.residual)
    # x − mean loses as many roundings as the mean is deviations away from 0.
    off = (16 + np.sqrt(case.width) / 2) * (np.abs(normed) + abs(case.offset) * case.centred * 2)
    bound = ROUNDING * (off + 2 * np.abs(bias) * case.bias + 2 * np.abs(before) * case.residual)
    compare("norm", case, y.read(), want, bound, case.width)


@pytest.mark.parametrize("centred", [False, True], ids=["rms", "layer"])
@pytest.mark.parametrize("width", [1, 7, 8, 9, 31, 33, 64, 65, 100, 577])
def test_rows_of_every_width(kinds: Rig, width: int, centred: bool) -> None:
    check_norm(kinds, NormCase(width, centred=centred and width > 1, bias=centred))
    check_norm(kinds, NormCase(width, rows=5, bucket=8, residual=True, centred=False))


def test_a_norm_of_sampled_rows_alone(rig: Rig) -> None:
    check_norm(rig, NormCase(50, rows=7, bucket=8, centred=True, bias=True, gather=True))


@pytest.mark.smoke
@pytest.mark.parametrize("scale", [1e-8, 1e-3, 1e4, 1e12])
def test_small_and_large_states(rig: Rig, scale: float) -> None:
    check_norm(rig, NormCase(70, scale=scale))


@pytest.mark.parametrize("offset", [1.0, 30.0, -1000.0])
def test_a_mean_far_from_zero(rig: Rig, offset: float) -> None:
    check_norm(rig, NormCase(96, centred=True, offset=offset))


# ---- qk_norm_rope -------------------------------------------------------------------------------


@dataclass(frozen=True)
class HeadsCase:
    heads: tuple[int, int, int]
    kv: str = "f32"
    whole: bool = False
    rotary_dim: int | None = None


AT = Rows.of((0, 0), (1, 15), (2, 16), (0, 1), (1, 17), (2, 47), (0, 99), (1, 48))


def check_heads(rig: Rig, case: HeadsCase) -> None:
    n_heads, n_kv_heads, d = case.heads
    config = llama_config(
        n_layers=2, n_heads=n_heads, n_kv_heads=n_kv_heads, head_dim=d, norm_eps=EPS,
        rotary_dim=case.rotary_dim,
    )  # fmt: skip
    rng = np.random.default_rng(d)
    n_rows = len(AT.slots)
    projected = rng.normal(size=(n_rows, (n_heads + 2 * n_kv_heads) * d)).astype(np.float32)
    n_gains = (n_heads + n_kv_heads) * d if case.whole else 2 * d
    gains = rng.uniform(0.5, 1.5, n_gains).astype(np.float32)
    cos_sin = rope_cos_sin(config, 100)
    cache = Cache.scattered(rig, config, case.kv, n_slots=3, n_tokens=100, seed=d)
    batch = rig.batch(AT.step, bucket=16, blocks=cache.pools.blocks[0])
    q = rig.output("q", n_rows, n_heads * d)
    given = rig.input("projected", projected)
    rig.run(
        lambda rec: ops.qk_norm_rope(
            rec, batch, "qk_norm_rope", config, given, rig.memory.upload("gains", gains),
            rig.memory.upload("rope_cos_sin", cos_sin) if case.rotary_dim != 0 else None,
            cache.pools, LAYER, q.tensor, whole=case.whole,
        )
    )  # fmt: skip
    filled_in = cache.arrays()
    keys, values = filled_in.keys, filled_in.values
    want = reference.qk_norm_rope(
        projected.astype(np.float64), gains.astype(np.float64), cos_sin.astype(np.float64),
        AT.on(cache), filled_in, n_heads, eps=EPS, whole=case.whole,
    )  # fmt: skip
    largest = np.abs(want).max()
    bound = np.array(ROUNDING * (24 + np.sqrt(n_heads * d)) * largest)
    compare("qk_norm_rope.q", case, q.read(), want.reshape(n_rows, -1), bound, d)
    rounding = 2.0**-11 if case.kv == "f16" else 0.0
    for name, pool, filled in (
        ("keys", cache.pools.keys[LAYER], keys),
        ("values", cache.pools.values[LAYER], values),
    ):
        after = rig.memory.read(pool)
        assert np.array_equal(np.isnan(after), np.isnan(filled)), "wrote in the wrong places"
        got, exact = after[~np.isnan(after)], filled[~np.isnan(filled)]
        room = bound * (name == "keys") + rounding * np.abs(exact) + 2.0**-25 * (case.kv == "f16")
        compare(f"qk_norm_rope.{name}.{case.kv}", case, got, exact, room, d)


@pytest.mark.parametrize("whole", [False, True], ids=["each", "whole"])
@pytest.mark.parametrize("heads", [(1, 1, 4), (5, 1, 12), (4, 2, 100), (3, 3, 64)], ids=str)
def test_heads_of_every_width(kinds: Rig, heads: tuple[int, int, int], whole: bool) -> None:
    check_heads(kinds, HeadsCase(heads, whole=whole))
    check_heads(kinds, HeadsCase(heads, "f16", whole=whole))


@pytest.mark.parametrize("rotary_dim", [0, 4, 8])
def test_heads_with_partial_rotary(rig: Rig, rotary_dim: int) -> None:
    check_heads(rig, HeadsCase((4, 2, 12), rotary_dim=rotary_dim))


# ---- position_embedding
# -----------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 33, 256, 300])
def test_position_embeddings_are_added_by_position(rig: Rig, width: int) -> None:
    rng = np.random.default_rng(width)
    positions = [3, 0, 49, 17, 17]
    x = rng.normal(size=(5, width)).astype(np.float32)
    table = rng.normal(size=(50, width)).astype(np.float32)
    stride = -(-width // 32) * 32
    y = rig.output("x", 5, width)
    start: Array = y.before.copy()
    start[:5, :width] = x
    rig.memory.write(y.tensor, start)
    into = replace(y, before=start)
    padded = np.zeros((50, stride), np.float32)
    padded[:, :width] = table
    batch = rig.batch(rows_at(positions), bucket=8)
    places = rig.memory.upload("table", padded)
    rig.run(lambda rec: ops.position_embedding(rec, batch, "positions", places, y.tensor))
    want = reference.position_embedding(
        x.astype(np.float64), table.astype(np.float64), np.array(positions)
    )
    compare("position_embedding", width, into.read(), want, ROUNDING * np.abs(want), width)
