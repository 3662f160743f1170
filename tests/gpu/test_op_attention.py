"""Paged attention and its entropy against their float64 twin."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from gpu import ops, reference
from gpu.config import ModelConfig
from tests.gpu.cache import LAYER, Cache, Rows
from tests.gpu.rig import ROUNDING, Array, Rig, compare, llama_config

pytestmark = pytest.mark.parity
LOG2_E = 1 / np.log(2)


@dataclass(frozen=True)
class Case:
    """`heads`: n_heads, n_kv_heads, head_dim; `rows`: (slot, position) of each; `sharpness`: how
    large scores get."""

    heads: tuple[int, int, int]
    rows: tuple[tuple[int, int], ...]
    dtype: str = "f32"
    bucket: int = 0
    capture: bool = True
    sharpness: float = 1.0
    seed: int = 0

    def __str__(self) -> str:
        n_heads, n_kv_heads, head_dim = self.heads
        return f"{self.dtype}-{n_heads}/{n_kv_heads}x{head_dim}-{self.rows}-×{self.sharpness:g}"


def attend(rig: Rig, case: Case, cache: Cache, q: Array) -> tuple[Array, Array | None]:
    """The device's attention of `q` (n_rows, width), and its entropy (n_rows, n_heads)."""
    n_heads, _, head_dim = case.heads
    config = config_of(case.heads)
    rows = Rows.of(*case.rows)
    n_rows = len(case.rows)
    batch = rig.batch(rows.step, bucket=case.bucket or n_rows)
    queries, out = rig.input("q", q), rig.output("out", n_rows, n_heads * head_dim)
    entropy = rig.output("entropy", n_rows, n_heads, stride=n_heads) if case.capture else None
    into = entropy.tensor if entropy else None
    rig.run(
        lambda rec: ops.attention(
            rec, batch, "attention", config, queries, cache.pools, LAYER, out.tensor, into
        )
    )
    return out.read(), entropy.read() if entropy else None


def config_of(heads: tuple[int, int, int]) -> ModelConfig:
    n_heads, n_kv_heads, head_dim = heads
    return llama_config(n_layers=2, n_heads=n_heads, n_kv_heads=n_kv_heads, head_dim=head_dim)


def check(rig: Rig, case: Case) -> None:
    n_heads, _, head_dim = case.heads
    config = config_of(case.heads)
    rng = np.random.default_rng(case.seed)
    lengths: dict[int, int] = {}
    for slot, position in case.rows:  # keys after the longest row's own position stay NaN
        lengths[slot] = max(lengths.get(slot, 0), position + 1)
    n_tokens = max(lengths.values())
    cache = Cache.scattered(rig, config, case.dtype, max(lengths) + 1, n_tokens, case.seed)
    cache.fill(rig, lengths, rng)
    q = rng.normal(size=(len(case.rows), n_heads * head_dim)).astype(np.float32)
    q *= np.float32(case.sharpness)
    got, entropy = attend(rig, case, cache, q)
    want, want_entropy = expected(case, cache, q)
    bound, entropy_bound = bounds(case, cache, q)
    compare(f"attention.{case.dtype}", case, got, want.reshape(got.shape), bound, case.seed)
    if entropy is not None:
        compare("attention.entropy_bits", case, entropy, want_entropy, entropy_bound, case.seed)


def expected(case: Case, cache: Cache, q: Array) -> tuple[Array, Array]:
    rows = Rows.of(*case.rows)
    n_heads, _, head_dim = case.heads
    heads = q.astype(np.float64).reshape(-1, n_heads, head_dim)
    keys, values = cache.keys.astype(np.float64), cache.values.astype(np.float64)
    return reference.attention(heads, keys, values, rows.slots, rows.positions, cache.tables)


def bounds(case: Case, cache: Cache, q: Array) -> tuple[Array, Array]:
    """How far float32 may be: a score is off by 8 roundings of ‖q‖‖k‖/√d, which moves its weight p
    by that and by the error of exp (3 + 2t roundings at distance t below the top)."""
    n_heads, n_kv_heads, head_dim = case.heads
    group = n_heads // n_kv_heads
    out = np.empty((len(q), n_heads, head_dim))
    entropy = np.empty((len(q), n_heads))
    for row, (slot, position) in enumerate(case.rows):
        pools = (cache.keys.astype(np.float64), cache.values.astype(np.float64))
        k, v = (reference.gather(pool, cache.tables[slot], position + 1) for pool in pools)
        for head in range(n_heads):
            query = q[row].astype(np.float64).reshape(n_heads, head_dim)[head] / np.sqrt(head_dim)
            keys, values = k[:, head // group], v[:, head // group]
            scores = keys @ query
            off = 8 * np.linalg.norm(query) * np.linalg.norm(keys, axis=1).max()
            p, below = reference.softmax(scores), scores.max() - scores
            weight = p * (2 * off + 8 + 4 * below)
            out[row, head] = (weight + 8 * p) @ np.abs(values)
            spread = np.log(len(p)) + p @ below
            entropy[row, head] = LOG2_E * ((2 * off + 16) * (1 + spread) + (weight @ below))
    return (ROUNDING * out).reshape(len(q), -1), ROUNDING * entropy


# 32 lanes walk the keys (16 when head_dim is 128), blocks hold 16.
POSITIONS = [(0,), (1,), (14, 15, 16), (30, 31, 32), (33, 47, 48), (63, 64, 65), (200, 0, 7)]


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("positions", POSITIONS, ids=str)
def test_positions_around_lanes_and_blocks(
    rig: Rig, positions: tuple[int, ...], dtype: str
) -> None:
    rows = tuple((slot, position) for slot, position in enumerate(positions))
    check(rig, Case((8, 4, 8), rows, dtype, seed=sum(positions)))


HEADS = [(1, 1, 4), (8, 8, 8), (5, 1, 12), (9, 3, 64), (4, 2, 100), (6, 2, 128)]


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_heads_in_groups_of_every_width(rig: Rig, heads: tuple[int, int, int], dtype: str) -> None:
    rows = ((0, 70), (1, 3), (0, 71), (2, 32))
    check(rig, Case(heads, rows, dtype, bucket=8, capture=heads[2] != 12, seed=heads[2]))


@pytest.mark.parametrize("sharpness", [0.0, 1e-3, 30.0, 1e4])
def test_from_flat_attention_to_one_key(rig: Rig, sharpness: float) -> None:
    check(rig, Case((4, 2, 16), ((0, 99), (1, 5), (0, 40)), sharpness=sharpness))


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_a_long_context(rig: Rig, dtype: str) -> None:
    check(rig, Case((8, 4, 8), ((0, 2047), (1, 1500)), dtype))
    check(rig, Case((9, 3, 64), ((0, 1023),), dtype))


def test_a_very_long_context(rig: Rig) -> None:
    """A device that ends loops early, as Mesa's software device does, would show."""
    check(rig, Case((1, 1, 64), ((0, 32_767),)))


def test_a_prompt_attends_only_to_what_came_before(rig: Rig) -> None:
    check(rig, Case((2, 1, 8), tuple((0, position) for position in range(100)), bucket=128))


def test_entropy_of_equal_scores_is_the_log_of_their_number(rig: Rig) -> None:
    case = Case((1, 1, 8), ((0, 63),))
    cache = Cache.scattered(rig, config_of((1, 1, 8)), "f32", 1, 64, seed=0)
    cache.fill(rig, {0: 64}, np.random.default_rng(0))
    _, entropy = attend(rig, case, cache, np.zeros((1, 8), np.float32))
    assert entropy == pytest.approx(6.0, abs=1e-6)


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("heads", [(8, 4, 8), (6, 2, 128)], ids=str)
def test_a_rows_bits_do_not_depend_on_its_block_numbers_or_the_rows_beside_it(
    rig: Rig, heads: tuple[int, int, int], dtype: str
) -> None:
    n_heads, _, head_dim = heads
    config = config_of(heads)
    q = np.random.default_rng(5).normal(size=(3, n_heads * head_dim)).astype(np.float32)
    lengths = {0: 90, 1: 33}
    rows = ((0, 89), (1, 32), (0, 17))
    seen = []
    for seed in range(3):  # the same contents in other blocks
        cache = Cache.scattered(rig, config, dtype, 2, 90, seed=seed)
        cache.fill(rig, lengths, np.random.default_rng(9))
        for capture in (False, True):
            out, _ = attend(rig, Case(heads, rows, dtype, 8, capture), cache, q)
            seen.append(out)
            alone = [
                attend(rig, Case(heads, (row,), dtype, capture=capture), cache, q[i : i + 1])[0][0]
                for i, row in enumerate(rows)
            ]
            seen.append(np.array(alone))
    for other in seen[1:]:
        assert np.array_equal(seen[0].view(np.uint32), other.view(np.uint32))
