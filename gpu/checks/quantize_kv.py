"""Checks of new keys and values stored in quantised caches, and of the Hadamard transform."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from gpu import ops
from gpu.checks.kv_cache import (
    LAYER,
    NUMPY,
    Heads,
    LayerCache,
    RowPlaces,
    compare_written,
    heads_config,
    pool_words,
    token_words,
)
from gpu.checks.kv_writes import CONTEXT, N_SLOTS, SOMEWHERE
from gpu.checks.rig import POISON, ROUNDING, Array, Rig, check_each, f64, normal
from gpu.kv.formats import KV_FORMATS, KvStorage, hadamard_size, pack_block
from gpu.ops import KvStaging
from gpu.reference import kv as reference
from gpu.step import KvVariant

PACKED = [name for name, format in KV_FORMATS.items() if format.packed]


@dataclass(frozen=True, slots=True)
class Stored:
    """Result of the device for new heads (n_rows, n_kv_heads, head_dim) and queries.

    words       contents of both pools
    new_q       the queries afterwards
    """

    cache: LayerCache
    at: RowPlaces
    keys: Array
    values: Array
    q: Array
    new_q: Array
    words: tuple[Array, Array]

    def token_words(self, which: int) -> Array:
        """Return the words of each row's keys (0) or values (1), (n_rows, n_kv_heads, words)."""
        storage = (self.cache.pools.format.keys, self.cache.pools.format.values)[which]
        blocks, at = self.cache.places(self.at)
        parts = token_words(self.words[which], storage, self.keys.shape[-1])
        return np.concatenate([part[blocks, :, at] for part in parts], axis=-1)


def kv_numbers(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Return numbers of all sizes, heads with one that is large, a head of zeros, one beyond
    float16."""
    x = rng.normal(size=shape) * 10.0 ** rng.integers(-3, 3, (*shape[:-1], 1))
    x[1::3, :, 5] *= 40
    x[2, 0] = 0
    x[3, 0, 0] = -1e6
    return x.astype(np.float32)


def stored(rig: Rig, heads: Heads, dtype: str, at: RowPlaces = SOMEWHERE) -> Stored:
    """Store random heads of one token each."""
    n_heads, n_kv_heads, head_dim = heads
    rng, n_rows = np.random.default_rng(head_dim), len(at.slots)
    k, v = (kv_numbers((n_rows, n_kv_heads, head_dim), rng) for _ in range(2))
    return store(rig, heads, dtype, at, k, v, normal(rng, n_rows, n_heads * head_dim))


def store(
    rig: Rig, heads: Heads, dtype: str, at: RowPlaces, k: Array, v: Array, q: Array
) -> Stored:
    """Store these heads, and transform these queries as the keys are."""
    config, n_rows = heads_config(heads), len(at.slots)
    cache = LayerCache.scattered(rig, config, dtype, N_SLOTS, CONTEXT, seed=heads[2])
    waiting = KvStaging.make(config, n_rows + 2, rig.memory)
    for tensor, numbers in ((waiting.keys, k), (waiting.values, v)):
        rig.poison(tensor)
        rig.memory.write(tensor, numbers)
    batch = replace(rig.batch(at.rows, bucket=n_rows + 2), kv_staging=waiting)
    queries = rig.in_place(q)
    rig.run_op(ops.quantize_kv, batch, "quantize", config, cache.pools, LAYER, queries.tensor)
    keys, values = (
        pool_words(rig.memory, pool[LAYER]) for pool in (cache.pools.keys, cache.pools.values)
    )
    return Stored(cache, at, k, v, q, queries.read(), (keys, values))


def check_quantize_kv(rig: Rig, dtype: str, heads: Heads) -> None:
    """Compare scales, codes, places and queries with the twin."""
    found, format = stored(rig, heads, dtype), KV_FORMATS[dtype]
    turn = found.cache.hadamard
    for which, (numbers, storage) in enumerate(
        ((found.keys, format.keys), (found.values, format.values))
    ):
        _check_words(rig, found, which, f64(numbers) @ turn.T, storage)
    case = f"{dtype}-{heads}"
    if not format.hadamard:
        rig.expect(f"{case}: queries changed", np.array_equal(found.new_q, found.q))
        return
    q = f64(found.q).reshape(-1, heads[0], heads[2])
    bound = 16 * ROUNDING * np.linalg.norm(q, axis=-1, keepdims=True)
    rig.compare("quantize_kv.queries", case, found.new_q.reshape(q.shape), q @ turn.T, bound)


def _check_words(rig: Rig, found: Stored, which: int, x: Array, storage: KvStorage) -> None:
    """Compare what was stored of x (n_rows, n_kv_heads, head_dim) with the twin.

    A scale may be the neighbouring float16, a code the neighbouring one where a number is between
    two if it was transformed. Nothing else may be written.
    """
    name, d, words = storage.name, x.shape[-1], found.words[which]
    block, case, hadamard = pack_block(d), f"{name}, {x.shape}", found.cache.pools.format.hadamard
    codes, scale = reference.unpack(name, found.token_words(which), 1, d, block)
    codes, scale = codes[..., 0, :], scale[..., 0, :, :]
    largest = np.abs(x.reshape(*x.shape[:-1], -1, block)).max(-1)[..., None]
    off = (2.0**-10 + 64 * ROUNDING * hadamard) * np.minimum(largest, 65504) + 2.0**-24
    if name == "nl4":  # fitted to levels, and a number between two may take either
        off = off + 0.004 * largest
    want = reference.scales(name, x, block)
    rig.compare(f"quantize_kv.{name}.scales", case, scale, want, off)
    exact = reference.encode(name, x, block, scale)
    share = (codes != exact).mean()
    rig.expect(f"{case}: {share:.1%} of the codes", share <= (0.01 if hadamard else 0))
    got, best = (reference.decode(name, each, block, scale) for each in (codes, exact))
    room = np.repeat(largest, block, axis=-1).reshape(x.shape) * (8 * ROUNDING + 2.0**-13)
    rig.compare(f"quantize_kv.{name}", case, np.abs(got - x), np.abs(best - x), room)
    untouched = np.ones(words.shape, bool)
    blocks, at = found.cache.places(found.at)
    for part in token_words(untouched, storage, d):
        part[blocks, :, at] = False
    rig.expect(f"{case}: wrote outside its tokens", bool((words[untouched] == POISON).all()))


def check_round_kv(rig: Rig, dtype: str, kv: KvVariant, heads: Heads) -> None:
    """Compare keys and values rounded in a cache of floats with the twin; nothing else may
    change."""
    config, at = heads_config(heads), SOMEWHERE
    n_rows, (_, n_kv_heads, d) = len(at.slots), heads
    cache = LayerCache.scattered(rig, config, dtype, N_SLOTS, CONTEXT, seed=d)
    rng, (blocks, places) = np.random.default_rng(d), cache.places(at)
    for pool in (cache.keys, cache.values):
        pool[blocks, :, places] = kv_numbers((n_rows, n_kv_heads, d), rng).clip(-65504, 65504)
    cache.upload(rig, cache.keys, cache.values)
    batch = rig.batch(at.rows, bucket=n_rows + 2)
    rig.run_op(ops.round_kv, batch, "round", config, cache.pools, LAYER, kv)
    want, block, bounds = cache.arrays(), pack_block(d), []
    for pool, storage in ((want.keys, kv.keys), (want.values, kv.values)):
        x = pool[blocks, :, places]
        pool[blocks, :, places] = reference.round_kv(storage, x, block)
        sizes = np.full(pool.shape, np.nan)
        sizes[blocks, :, places] = np.abs(x).max(-1, keepdims=True)
        bounds.append((4 * ROUNDING if storage else 0) * sizes[~np.isnan(pool)])
    case = f"{kv.keys}-{kv.values}-{heads}"
    compare_written(rig, "round_kv", case, cache, want, (bounds[0], bounds[1]))


def check_inverse_hadamard(rig: Rig, heads: Heads) -> None:
    """Compare heads transformed back with the twin."""
    n_heads, _, d = heads
    config, n_rows = heads_config(heads), len(SOMEWHERE.slots)
    x = normal(np.random.default_rng(d), n_rows, n_heads * d)
    out, batch = rig.in_place(x), rig.batch(SOMEWHERE.rows, bucket=n_rows + 1)
    rig.run_op(ops.inverse_hadamard, batch, "back", config, out.tensor)
    parts = f64(x).reshape(n_rows, n_heads, d)
    turn = reference.hadamard_matrix(d, hadamard_size(d))
    want = reference.inverse_hadamard(parts, turn)
    bound = 16 * ROUNDING * np.linalg.norm(parts, axis=-1, keepdims=True)
    rig.compare("inverse_hadamard", heads, out.read().reshape(want.shape), want, bound)


# ---- of a report -----------------------------------------------------------------------------

STORED_HEADS: tuple[Heads, ...] = ((2, 1, 8), (9, 3, 64), (3, 3, 80), (6, 2, 128))
ROUNDED = [KvVariant("q8", "q4"), KvVariant("q4", "q8"), KvVariant("q8"), KvVariant(None, "q4")]
TRANSFORMED_HEADS: tuple[Heads, ...] = ((2, 1, 8), (9, 3, 64), (2, 1, 48), (6, 2, 128))

CHECKS: dict[str, Callable[[Rig], None]] = {
    **{
        f"quantize_kv {dtype}": check_each(
            check_quantize_kv, *((dtype, heads) for heads in STORED_HEADS)
        )
        for dtype in PACKED
    },
    **{
        f"round_kv {dtype}": check_each(
            check_round_kv,
            *((dtype, kv, heads) for kv in ROUNDED[:2] for heads in STORED_HEADS),
        )
        for dtype in NUMPY
    },
    "inverse_hadamard": check_each(
        check_inverse_hadamard, *((heads,) for heads in TRANSFORMED_HEADS)
    ),
}
