"""Rotary positions and the writes into the paged cache against their float64 twin."""

from __future__ import annotations

import numpy as np
import pytest

from gpu import ops, reference
from gpu.models.llama import rotations
from tests.gpu.cache import LAYER, Cache, Rows
from tests.gpu.rig import ROUNDING, Array, Rig, compare, llama_config

pytestmark = pytest.mark.parity
CONTEXT = 100
SOMEWHERE = Rows.of((0, 0), (1, 15), (2, 16), (0, 1), (1, 17), (2, 47), (0, 99), (1, 48))
F16_ROUNDING, F16_DENORMAL = 2.0**-11, 2.0**-25


def check(
    rig: Rig, heads: tuple[int, int, int], dtype: str, rows: Rows, *, bucket: int = 0, seed: int = 0
) -> None:
    n_heads, n_kv_heads, head_dim = heads
    config = llama_config(n_layers=2, n_heads=n_heads, n_kv_heads=n_kv_heads, head_dim=head_dim)
    rng = np.random.default_rng(seed)
    n_rows, all_heads = len(rows.slots), n_heads + 2 * n_kv_heads
    qkv = rng.normal(size=(n_rows, all_heads * head_dim)).astype(np.float32)
    turns = rotations(config, CONTEXT)
    cache = Cache.scattered(rig, config, dtype, n_slots=3, n_tokens=CONTEXT, seed=seed)
    batch = rig.batch(rows.step, bucket=bucket or n_rows)
    x, q = rig.input("qkv", qkv), rig.output("q", n_rows, n_heads * head_dim)
    table = rig.memory.upload("rotations", turns)
    rig.run(
        lambda rec: ops.rope_kv(rec, batch, "rope", config, x, table, cache.pools, LAYER, q.tensor)
    )
    exact = qkv.astype(np.float64).reshape(n_rows, all_heads, head_dim)
    keys, values = cache.keys.astype(np.float64), cache.values.astype(np.float64)
    want = reference.rope_kv(
        exact, turns.astype(np.float64), rows.slots, rows.positions, cache.tables, keys, values,
        n_heads,
    )  # fmt: skip
    case = f"{dtype}-{n_heads}/{n_kv_heads}x{head_dim}-{n_rows}rows"
    size = 4 * ROUNDING * np.abs(exact).max()
    compare("rope_kv.q", case, q.read(), want.reshape(n_rows, -1), size, seed)
    got_keys = written(rig, cache, cache.pools.keys[LAYER], keys)
    got_values = written(rig, cache, cache.pools.values[LAYER], values)
    stored = F16_ROUNDING if dtype == "f16" else 0.0
    tiny = F16_DENORMAL if dtype == "f16" else 0.0
    keys, values = keys[~np.isnan(keys)], values[~np.isnan(values)]
    compare(
        f"rope_kv.keys.{dtype}", case, got_keys, keys, size + stored * np.abs(keys) + tiny, seed
    )
    compare(
        f"rope_kv.values.{dtype}", case, got_values, values, stored * np.abs(values) + tiny, seed
    )


def written(rig: Rig, cache: Cache, pool: ops.Tensor, want: Array) -> Array:
    """What the op wrote; fails when it wrote elsewhere, or not everywhere it should."""
    after = rig.memory.read(pool)
    assert np.array_equal(np.isnan(after), np.isnan(want)), f"{pool!r}: wrote in the wrong places"
    return after[~np.isnan(after)]


HEADS = [(1, 1, 4), (8, 4, 8), (5, 1, 12), (9, 3, 64), (4, 2, 100), (3, 3, 128)]


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_positions_around_block_borders(rig: Rig, heads: tuple[int, int, int], dtype: str) -> None:
    check(rig, heads, dtype, SOMEWHERE, seed=heads[0])


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize(("n_rows", "bucket"), [(1, 1), (1, 2), (3, 4), (65, 128), (100, 128)])
def test_every_share_of_a_bucket(rig: Rig, n_rows: int, bucket: int, dtype: str) -> None:
    rows = Rows.of(*((0, position) for position in range(n_rows)))
    check(rig, (2, 1, 8), dtype, rows, bucket=bucket, seed=n_rows)


def test_a_far_position_keeps_its_accuracy(rig: Rig) -> None:
    """The angle of position 131071 has 2^17 radians; float32 alone would know it to 0.01."""
    config = llama_config(head_dim=8)
    context = 131_072
    turns = rotations(config, context)
    angles = np.outer([context - 1], config.rope.inv_freq(8))
    bound = np.full(4, ROUNDING)
    compare("rotations.cos", "far", turns[-1, :, 0], np.cos(angles)[0], bound, 0)
    compare("rotations.sin", "far", turns[-1, :, 1], np.sin(angles)[0], bound, 0)
