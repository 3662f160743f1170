"""Quantised new keys and values, and the Hadamard rotation, against their twins."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from gpu import ops
from gpu.config import ModelConfig
from gpu.kv.formats import KV_FORMATS, KvStorage, hadamard_size, pack_block
from gpu.ops import KvStaging
from gpu.reference import kv as reference
from tests.gpu.kv.cache import LAYER, Cache, Rows, pool_words, token_words
from tests.gpu.ops.rig import ROUNDING, Array, Rig, as_kind, compare, llama_config

pytestmark = pytest.mark.parity
FORMATS = [name for name, format in KV_FORMATS.items() if format.packed]
ROWS = Rows.of((0, 0), (1, 15), (2, 16), (0, 1), (1, 17), (2, 47), (0, 99), (1, 48))
HEADS = [(2, 1, 8), (9, 3, 64), (4, 2, 24), (3, 3, 80), (2, 1, 48), (6, 2, 128), (1, 1, 256)]


@dataclass(frozen=True)
class Stored:
    """Result of the device for new heads (n_rows, n_kv_heads, head_dim) and queries."""

    cache: Cache
    keys: Array
    values: Array
    q: Array
    new_q: Array
    words: tuple[Array, Array]


def config_of(heads: tuple[int, int, int]) -> ModelConfig:
    n_heads, n_kv_heads, head_dim = heads
    return llama_config(n_layers=2, n_heads=n_heads, n_kv_heads=n_kv_heads, head_dim=head_dim)


def kv_staging(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Numbers of all sizes, heads with one that is large, a head of zeros, one beyond float16."""
    x = rng.normal(size=shape) * 10.0 ** rng.integers(-3, 3, (*shape[:-1], 1))
    x[1::3, :, 5] *= 40
    x[2, 0] = 0
    x[3, 0, 0] = -1e6
    return x.astype(np.float32)


def store(
    rig: Rig, heads: tuple[int, int, int], dtype: str, rows: Rows, k: Array, v: Array, q: Array
) -> Stored:
    config = config_of(heads)
    cache = Cache.scattered(rig, config, dtype, n_slots=3, n_tokens=100, seed=heads[2])
    waiting = KvStaging.make(config, len(rows.slots) + 2, rig.memory)
    for tensor, numbers in ((waiting.keys, k), (waiting.values, v)):
        rig.poison(tensor)
        rig.memory.write(tensor, numbers)
    bucket = len(rows.slots) + 2
    batch = replace(rig.batch(rows.step, bucket=bucket), kv_staging=waiting)
    queries = rig.input("q", q)
    rig.run(lambda rec: ops.quantize_kv(rec, batch, "cache", config, cache.pools, LAYER, queries))
    words = tuple(
        pool_words(rig.memory, pool[LAYER]) for pool in (cache.pools.keys, cache.pools.values)
    )
    after = rig.memory.read(queries)
    assert np.isnan(after[len(q) :]).all(), "rows that are not there"
    return Stored(cache, k, v, q, after[: len(q), : q.shape[1]], (words[0], words[1]))


def stored(
    rig: Rig, heads: tuple[int, int, int], dtype: str, rows: Rows = ROWS, seed: int = 0
) -> Stored:
    n_heads, n_kv_heads, head_dim = heads
    rng = np.random.default_rng(seed + head_dim)
    k, v = (kv_staging((len(rows.slots), n_kv_heads, head_dim), rng) for _ in range(2))
    q = rng.normal(size=(len(rows.slots), n_heads * head_dim)).astype(np.float32)
    return store(rig, heads, dtype, rows, k, v, q)


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_codes_and_scales_are_those_of_the_twin(
    rig: Rig, heads: tuple[int, int, int], dtype: str
) -> None:
    found = stored(rig, heads, dtype)
    format, turn = KV_FORMATS[dtype], found.cache.hadamard
    for words, numbers, storage in (
        (found.words[0], found.keys, format.keys),
        (found.words[1], found.values, format.values),
    ):
        numbers = numbers.astype(np.float64)
        _, scale = reference.quantize_kv(storage.name, numbers, turn, pack_block(heads[2]))
        case = f"{dtype}-{heads}"
        check_words(words, numbers @ turn.T, scale, storage, found.cache, case, format.hadamard)


def check_words(
    words: Array, x: Array, want: Array, storage: KvStorage, cache: Cache, case: str, rotated: bool
) -> None:
    """Compare what was stored of x (n_rows, n_kv_heads, head_dim) with the twin.

    `want` are the twin's scales. A scale may be the neighbouring float16, a code the neighbouring
    one where a number is between two if it was rotated. Nothing else may be written.
    """
    name, d = storage.name, x.shape[-1]
    block = pack_block(d)
    blocks, at = cache.tables[ROWS.slots, ROWS.positions // 16], ROWS.positions % 16
    data, grid_words = token_words(words, storage, d)
    rows = np.concatenate([data[blocks, :, at], grid_words[blocks, :, at]], axis=-1)
    codes, scale = (found[..., 0, :] if found.ndim == 4 else found[..., 0, :, :]
                   for found in reference.unpack(name, rows, 1, d, block))  # fmt: skip
    largest = np.abs(x.reshape(*x.shape[:-1], -1, block)).max(-1)[..., None]
    off = (2.0**-10 + 64 * ROUNDING * rotated) * np.minimum(largest, 65504) + 2.0**-24
    if name == "nl4":  # fitted to levels, and a number between two may take either
        off = off + 0.004 * largest
    compare(f"quantize_kv.{name}.grids", case, scale, want, off, 0)

    exact = reference.encode(name, x, block, scale)
    wrong = codes != exact
    share = 0.01 if rotated else 0
    assert wrong.mean() <= share, f"{case}: {wrong.sum()} of {wrong.size} codes of {name}"
    got = reference.decode(name, codes, block, scale)
    best = reference.decode(name, exact, block, scale)
    room = np.repeat(largest, block, axis=-1).reshape(x.shape) * (8 * ROUNDING + 2.0**-13)
    compare(f"quantize_kv.{name}", case, np.abs(got - x), np.abs(best - x), room, 0)

    untouched = np.ones(words.shape, bool)
    for part in token_words(untouched, storage, d):
        part[blocks, :, at] = False
    assert (words[untouched] == cache.stored[0].flat[0]).all(), f"{case}: wrote beside its tokens"


def test_a_scale_is_the_nearest_float16(rig: Rig) -> None:
    """Ties go to the even one; below 2⁻¹⁴, where float16 are equally far apart, too."""
    heads = (1, 1, 256)
    block = pack_block(heads[2])
    steps = np.array([0.0, 0.4, 0.5, 0.6, 1.5, 2.5, 3.5, 1022.5, 1023.4, 1023.5]) * 2.0**-24
    ties = np.array([1 + (2 * i + 1) * 2.0**-11 for i in range(6)])
    beside = np.concatenate([np.nextafter(np.float32(ties), np.float32(end)) for end in (0, 9)])
    largest = np.concatenate([steps, ties, beside, ties * 2.0**-14, ties * 2.0**12, [65519, 7e4]])
    rows = len(ROWS.slots)
    largest = np.resize(largest.astype(np.float32), (rows, 1, heads[2] // block))
    keys = np.repeat(largest, block, axis=-1)
    found = store(rig, heads, "q8", ROWS, keys, keys, np.zeros((rows, heads[2]), np.float32))
    data, scales = token_words(found.words[0], KV_FORMATS["q8"].keys, heads[2])
    blocks, at = found.cache.tables[ROWS.slots, ROWS.positions // 16], ROWS.positions % 16
    words = np.concatenate([data[blocks, :, at], scales[blocks, :, at]], axis=-1)
    codes, scale = reference.unpack("q8", words, 1, heads[2], block)
    want = np.minimum(largest, 65504).astype(np.float16).astype(np.float64).reshape(scale.shape)
    assert np.array_equal(scale, want)
    exact = reference.encode("q8", keys.astype(np.float64)[..., None, :], block, want)
    assert np.array_equal(codes, exact), "codes are of the stored scale"


@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_queries_get_the_hadamard_transform_of_the_keys_and_outputs_its_inverse(
    rig: Rig, heads: tuple[int, int, int]
) -> None:
    n_heads, _, d = heads
    found = stored(rig, heads, "rotated4")
    turn = reference.hadamard_matrix(d, hadamard_size(d))
    np.testing.assert_allclose(turn @ turn.T, np.eye(d), atol=1e-12)
    q = found.q.astype(np.float64).reshape(-1, n_heads, d)
    bound = 16 * ROUNDING * np.linalg.norm(q, axis=-1, keepdims=True)
    compare("rotate_heads", heads, found.new_q.reshape(q.shape), q @ turn.T, bound, 0)

    config = config_of(heads)
    batch = rig.batch(ROWS.step, bucket=len(ROWS.slots) + 1)
    x = rig.input("x", found.new_q)
    rig.run(lambda rec: ops.inverse_hadamard(rec, batch, "back", config, x))
    after = rig.memory.read(x)
    back = reference.inverse_hadamard(found.new_q.astype(np.float64).reshape(q.shape), turn)
    np.testing.assert_allclose(back, q, atol=float(bound.max()))
    got = after[: len(q), : n_heads * d].reshape(q.shape)
    compare("inverse_hadamard", heads, got, back, bound, 0)
    assert np.isnan(after[len(q) :]).all(), "rows that are not there"
    for name in ("q8", "q8q4"):
        assert np.array_equal(*(lambda s: (s.new_q, s.q))(stored(rig, heads, name)))


@pytest.mark.parametrize("dtype", FORMATS)
def test_a_tokens_words_do_not_depend_on_its_place_or_the_rows_beside_it(
    rig: Rig, dtype: str
) -> None:
    heads = (4, 2, 48)
    together = stored(rig, heads, dtype)
    storages = (KV_FORMATS[dtype].keys, KV_FORMATS[dtype].values)
    alone = Rows.of((2, 37))
    for row in (0, 3, 7):
        k, v, q = (a[row : row + 1] for a in (together.keys, together.values, together.q))
        own = store(rig, heads, dtype, alone, k, v, q)
        assert np.array_equal(own.new_q[0].view("u4"), together.new_q[row].view("u4"))
        for i, storage in enumerate(storages):
            mine = _words_at(own, i, storage, alone, 0)
            assert np.array_equal(mine, _words_at(together, i, storage, ROWS, row))


def _words_at(found: Stored, which: int, storage: KvStorage, rows: Rows, row: int) -> Array:
    slot, position = int(rows.slots[row]), int(rows.positions[row])
    block = found.cache.tables[slot, position // 16]
    parts = token_words(found.words[which], storage, found.keys.shape[-1])
    return np.concatenate([part[block, :, position % 16].reshape(-1) for part in parts])


@pytest.mark.parametrize("heads", [(4, 2, 24), (6, 2, 128), (1, 1, 256)], ids=str)
def test_as_many_lanes_as_on_a_real_gpu(rig: Rig, heads: tuple[int, int, int]) -> None:
    """Workgroups have more lanes than a software device runs in lockstep, so barriers must
    synchronise them."""
    kind = Rig(as_kind(rig.device, software=False), rig.kernels)
    for dtype in FORMATS:
        test_codes_and_scales_are_those_of_the_twin(kind, heads, dtype)
    test_queries_get_the_hadamard_transform_of_the_keys_and_outputs_its_inverse(kind, heads)
