"""Checks of attention, of what writes the KV cache, and of what reads it, in every KV format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from gpu import ops
from gpu.bench.machine.kv_cache import LAYER, LayerCache, RowPlaces, pool_words, token_words
from gpu.bench.machine.rig import (
    POISON,
    ROUNDING,
    Array,
    Arrays,
    Rig,
    f64,
    normal,
    op_config,
    recording,
    rows_at,
)
from gpu.checkpoint.packing import FORMATS, pack, unpack
from gpu.checkpoint.weights import WeightLoader
from gpu.config import ModelConfig
from gpu.kv.formats import KV_FORMATS, KvStorage, hadamard_size, pack_block
from gpu.models.rope import rope_cos_sin
from gpu.ops import KvSplits, KvStaging
from gpu.ops.batch import STATE_FLOATS
from gpu.reference import kv as kv_reference
from gpu.reference import ops as reference
from gpu.webgpu.buffers import padded

EPS = 1e-5
LOG2_E = 1 / np.log(2)
SHARE = 0.4
"""Share of the worst case that the bound allows: errors of many roundings seldom add up. Three
times the largest error on two drivers."""
SOMEWHERE = RowPlaces.of((0, 0), (1, 15), (2, 16), (0, 1), (1, 17), (2, 47), (0, 99), (1, 48))
"""Positions around the borders of blocks."""
PACKED = [name for name, format in KV_FORMATS.items() if format.packed]

Heads = tuple[int, int, int]
"""n_heads, n_kv_heads, head_dim"""

PACKED_HEADS: tuple[Heads, ...] = ((2, 1, 8), (9, 3, 64), (3, 3, 80), (6, 2, 128))


def _config(heads: Heads, **changes: object) -> ModelConfig:
    n_heads, n_kv_heads, head_dim = heads
    return op_config(
        n_layers=2, n_heads=n_heads, n_kv_heads=n_kv_heads, head_dim=head_dim, **changes
    )


# ---- attention -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AttentionCase:
    """`at`: (slot, position) of each row; `bucket`: rows of the plan; `capture`: entropies, too."""

    heads: Heads
    at: tuple[tuple[int, int], ...]
    bucket: int = 8
    splits: int = 1
    window: int | None = None
    cap: float | None = None
    capture: bool = True

    def __str__(self) -> str:
        cut = f"heads {self.heads}, {len(self.at)} rows, {self.splits} splits"
        return f"{cut}, window {self.window}, cap {self.cap}"

    @property
    def config(self) -> ModelConfig:
        windows = (None, self.window)
        return _config(self.heads, sliding_windows=windows, attn_logit_softcap=self.cap)


SOME_ROWS = ((0, 70), (0, 71), (0, 72), (1, 3), (2, 32), (3, 15), (3, 16))
ATTENTION_CASES = (
    AttentionCase((9, 3, 64), SOME_ROWS),
    AttentionCase((9, 3, 64), SOME_ROWS, bucket=64),
    AttentionCase((13, 1, 8), tuple((0, i) for i in range(60)), bucket=64),
    AttentionCase((2, 1, 64), ((0, 600), (1, 255), (2, 256)), splits=8, window=300, cap=30.0),
    AttentionCase((6, 2, 128), ((0, 1022),), bucket=1, splits=8),
)


def check_attention(rig: Rig, dtype: str) -> None:
    for case in ATTENTION_CASES:
        check_attention_case(rig, dtype, case)


def check_attention_case(rig: Rig, dtype: str, case: AttentionCase) -> None:
    """Compare attention over a cache in `dtype` with its twin."""
    n_heads, _, head_dim = case.heads
    config, at = case.config, RowPlaces.of(*case.at)
    n_rows, rng, lengths = len(case.at), np.random.default_rng(1), at.lengths
    cache = LayerCache.scattered(rig, config, dtype, max(lengths) + 1, max(lengths.values()))
    cache.fill(rig, lengths, rng)
    q = normal(rng, n_rows, n_heads * head_dim)
    batch = rig.batch(at.rows, bucket=max(case.bucket, n_rows))
    if case.splits > 1:
        splits = KvSplits.make(config, case.splits, rig.memory)
        rig.poison(splits.values)
        rig.poison(splits.states)
        splits.clear_counts(rig.memory)
        batch = replace(batch, splits=splits)
    queries, out = rig.input("q", q), rig.output(n_rows, n_heads * head_dim)
    entropy = rig.output(n_rows, n_heads, n_heads)
    rig.run(
        recording(
            ops.attention, batch, "attention", config, queries, cache.pools, LAYER, out.tensor,
            entropy.tensor if case.capture else None,
        )
    )  # fmt: skip
    scoring = reference.AttentionScoring(None, case.cap, case.window)
    heads = q.astype(np.float64).reshape(-1, n_heads, head_dim)
    want, want_entropy = reference.attention(heads, cache.rows(at), cache.arrays(), scoring)
    want = (want @ cache.hadamard).reshape(n_rows, -1)
    bound, entropy_bound = _attention_bounds(case, cache, q)
    rig.compare(f"{dtype}, {case}", out.read(), want, bound)
    if case.capture:
        rig.compare(f"entropy, {dtype}, {case}", entropy.read(), want_entropy, entropy_bound)


def _attention_bounds(case: AttentionCase, cache: LayerCache, q: Array) -> tuple[Array, Array]:
    """Return the error bounds of float32. A score is off by 8 roundings of ‖q‖‖k‖/√d, which moves
    its weight p by that and by the error of exp (3 + 2t roundings at distance t below the top)."""
    n_heads, n_kv_heads, head_dim = case.heads
    out, entropy = np.empty((len(q), n_heads, head_dim)), np.empty((len(q), n_heads))
    for row, (slot, position) in enumerate(case.at):
        pools = f64(cache.keys, cache.values)
        k, v = (reference.gather(pool, cache.tables[slot], position + 1) for pool in pools)
        for head in range(n_heads):
            query = q[row].astype(np.float64).reshape(n_heads, head_dim)[head]
            first = max(0, position + 1 - case.window) if case.window else 0
            keys, values = (x[first:, head * n_kv_heads // n_heads] for x in (k, v))
            scores = reference.scores(query, keys, reference.AttentionScoring(None, case.cap))
            off = 8 * head_dim**-0.5 * np.linalg.norm(query) * np.linalg.norm(keys, axis=1).max()
            off += 4 * (case.cap or 0)  # 1 - e of the cap cancels where scores are small
            p, below = reference.softmax(scores), scores.max() - scores
            weight = p * (2 * off + 8 + 4 * below)
            size = np.abs(values)
            if cache.pools.format.values.name == "q4":  # a minimum is added to each number
                size = size + size.max(axis=0)
            out[row, head] = (weight + 8 * p) @ size
            spread = np.log(len(p)) + p @ below
            entropy[row, head] = LOG2_E * ((2 * off + 16) * (1 + spread) + (weight @ below))
    if cache.pools.format.hadamard:  # every number of a head is a sum of those transformed with it
        out = 2 * np.sqrt(np.square(out) @ np.square(cache.hadamard))
    return (SHARE * ROUNDING * out).reshape(len(q), -1), SHARE * ROUNDING * entropy


@dataclass(frozen=True, slots=True)
class MergeCase:
    """`split`: keys of a split; `capture`: entropies, too."""

    n_splits: int
    n_heads: int
    head_dim: int
    split: int = 16
    capture: bool = True


def check_attention_merge(rig: Rig) -> None:
    for case in (MergeCase(1, 1, 4), MergeCase(2, 3, 20), MergeCase(5, 9, 64)):
        check_merge_case(rig, case)


def check_merge_case(rig: Rig, case: MergeCase) -> None:
    """Compare a merge of partial results with its twin."""
    n_splits, n_heads, head_dim, split = case.n_splits, case.n_heads, case.head_dim, case.split
    rng, width = np.random.default_rng(n_splits), n_heads * head_dim
    rows = rig.device.policy.split_rows
    shape, config = (n_splits, rows, n_heads), op_config(n_heads=n_heads, head_dim=head_dim)
    states = np.empty((*shape, STATE_FLOATS), np.float32)
    states[..., 0] = rng.normal(size=shape) * 10
    states[..., 1] = rng.uniform(1, split, shape)
    states[..., 2] = -rng.uniform(0, 3, shape) * states[..., 1]
    values = normal(rng, *shape, head_dim)
    whole = np.full((n_splits, rows, padded(width)), POISON, np.uint32).view(np.float32)
    whole[..., :width] = values.reshape(n_splits, rows, width)
    flat = replace(rig.memory.upload("values", whole), shape=(n_splits * rows, padded(width)))
    splits = KvSplits(n_splits, flat, rig.memory.upload("states", states))
    out, bits = rig.output(3, width), rig.output(3, n_heads, n_heads)
    batch = rig.batch(rows_at([n_splits * split - 1] * 3))
    rig.run(
        recording(
            ops.attention_merge,
            batch,
            "merge",
            config,
            splits,
            split,
            out.tensor,
            bits.tensor if case.capture else None,
        )
    )
    values_, states_ = f64(values[:, :3], states[:, :3])
    want, entropy = reference.attention_merge(values_, states_)
    error = (n_splits + 4) * ROUNDING
    largest = np.abs(values).max() * n_splits / states_[..., 1].min()
    rig.compare(f"{n_splits} splits", out.read(), want.reshape(3, -1), error * largest)
    if case.capture:
        rig.compare(f"entropy of {n_splits} splits", bits.read(), entropy, error * 10)


def check_attention_weights(rig: Rig, dtype: str) -> None:
    heads, first, n = (6, 3, 16), 5, 290
    at = RowPlaces.of((0, 299), (1, 300), (0, 20))
    config, rng = _config(heads), np.random.default_rng(2)
    cache = LayerCache.scattered(rig, config, dtype, 2, 301)
    cache.fill(rig, at.lengths, rng)
    q = normal(rng, 3, 96)
    keys = rig.memory.zeros("keys", (2,), "u32", uniform=True)
    rig.memory.write(keys, np.array([first, n], np.uint32))
    batch, queries, out = (
        rig.batch(at.rows, bucket=4),
        rig.input("q", q),
        rig.output(3, 6 * n, 6 * n),
    )
    rig.run(
        recording(
            ops.attention_weights, batch, "weights", config, queries, cache.pools, LAYER, keys,
            out.tensor,
        )
    )  # fmt: skip
    want = reference.attention_weights(
        q.astype(np.float64).reshape(3, 6, 16), cache.rows(at), cache.keys.astype(np.float64),
        first, n,
    )  # fmt: skip
    known = cache.keys[~np.isnan(cache.keys)]
    off = 8 * np.linalg.norm(q, axis=1).max() * np.sqrt(16) * np.abs(known).max() / np.sqrt(16)
    bound = ROUNDING * want * (2 * off + 32 + 4 * np.log(1 / np.maximum(want, 1e-300)))
    rig.compare(dtype, out.read().reshape(want.shape), want, bound)


# ---- writing the cache -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QkvCase:
    """`width`: inputs; `bucket`: rows of the plan."""

    heads: Heads
    width: int
    bucket: int = 8
    bias: bool = True
    kv_dtype: str = "f16"

    @property
    def places(self) -> RowPlaces:
        if self.bucket == 8:
            return SOMEWHERE
        return RowPlaces.of(*((i % 3, i // 3) for i in range(max(1, min(self.bucket - 1, 250)))))


def check_qkv(rig: Rig, dtype: str) -> None:
    """Check queries, keys and values of every weight format in every plain KV format."""
    for case in (QkvCase((9, 3, 64), 100), QkvCase((5, 1, 12), 40, kv_dtype="f32")):
        check_qkv_case(rig, dtype, case)


def check_qkv_case(rig: Rig, dtype: str, case: QkvCase) -> None:
    """Compare a projection to queries, keys and values with its twin."""
    heads, kv, width, at = case.heads, case.kv_dtype, case.width, case.places
    config, n_rows = _config(heads, hidden_size=width), len(at.slots)
    rng, n = np.random.default_rng(width), (heads[0] + 2 * heads[1]) * heads[2]
    x, bias = normal(rng, n_rows, width), normal(rng, n) * case.bias
    weight = normal(rng, n, width) / np.float32(np.sqrt(width))
    gain, cos_sin = rng.uniform(0.5, 1.5, width).astype(np.float32), rope_cos_sin(config, 100)
    cache = LayerCache.scattered(rig, config, kv, 3, 100)
    parts = np.cumsum([heads[0], heads[1]]) * heads[2]
    arrays = dict(zip("qkv", np.split(weight, parts), strict=True))
    arrays |= dict(zip(("bq", "bk", "bv"), np.split(bias, parts), strict=True))
    loader = WeightLoader(Arrays(arrays), rig.memory, dtype)
    matrix = loader.qkv("qkv", "q", "k", "v", config, config.rope_dim)
    biases = loader.qkv_biases("bias", "bq", "bk", "bv", config, config.rope_dim)
    batch = rig.batch(at.rows, bucket=case.bucket, blocks=cache.pools.blocks[0])
    q, given = rig.output(n_rows, heads[0] * heads[2]), rig.input("x", x)
    rope, norm = rig.memory.upload("rope", cos_sin), ops.Norm(rig.gain(gain), EPS)
    rig.run(
        recording(
            ops.qkv, batch, "qkv", config, given, matrix, rope, cache.pools, LAYER, q.tensor,
            norm=norm, bias=biases if case.bias else None,
        )
    )  # fmt: skip
    filled, (x_, bias_, gain_, cos_sin_) = cache.arrays(), f64(x, bias, gain, cos_sin)
    stored = unpack(dtype, pack(dtype, weight), width).astype(np.float64)
    want = reference.qkv(
        x_, stored, cos_sin_, cache.rows(at), filled, heads[0],
        norm=reference.Norm(gain_, EPS), bias=bias_,
    )  # fmt: skip
    normed = reference.rms_norm(x_, gain_, EPS)
    size = np.linalg.norm(normed, axis=1).max() * np.linalg.norm(stored, axis=1).max()
    largest = max(np.nanmax(np.abs(each)) for each in (want, filled.keys, filled.values))
    sums = 8 * (size + np.abs(bias_).max())
    bound = 1.5 * ROUNDING * (sums + (16 + np.sqrt(width)) * largest)
    name = f"{dtype}, {kv} cache, heads {heads}"
    rig.compare(f"queries, {name}", q.read(), want.reshape(n_rows, -1), bound)
    _compare_cache(rig, name, cache, filled, bound)


QkNormCase = tuple[Heads, str, bool, int | None]
"""Heads, format of the cache, whether a norm is over all heads, numbers that are rotated."""
QK_NORM_CASES: tuple[QkNormCase, ...] = (
    ((5, 1, 12), "f32", False, None),
    ((4, 2, 100), "f16", True, None),
    ((4, 2, 12), "f32", False, 8),
)


def check_qk_norm_rope(rig: Rig, cases: Sequence[QkNormCase] = QK_NORM_CASES) -> None:
    n_rows = len(SOMEWHERE.slots)
    for heads, kv, whole, rotary_dim in cases:
        config = _config(heads, norm_eps=EPS, rotary_dim=rotary_dim)
        n_heads, n_kv_heads, d = heads
        rng = np.random.default_rng(d)
        projected = normal(rng, n_rows, (n_heads + 2 * n_kv_heads) * d)
        n_gains = (n_heads + n_kv_heads) * d if whole else 2 * d
        gains = rng.uniform(0.5, 1.5, n_gains).astype(np.float32)
        cos_sin, cache = rope_cos_sin(config, 100), LayerCache.scattered(rig, config, kv, 3, 100)
        batch = rig.batch(SOMEWHERE.rows, bucket=16, blocks=cache.pools.blocks[0])
        q, upload = rig.output(n_rows, n_heads * d), rig.memory.upload
        given = rig.input("projected", projected), upload("gains", gains), upload("rope", cos_sin)
        rig.run(
            recording(
                ops.qk_norm_rope, batch, "qk_norm_rope", config, *given, cache.pools, LAYER,
                q.tensor, whole=whole,
            )
        )  # fmt: skip
        filled = cache.arrays()
        projected_, gains_, cos_sin_ = f64(projected, gains, cos_sin)
        want = reference.qk_norm_rope(
            projected_, gains_, cos_sin_, cache.rows(SOMEWHERE), filled, n_heads, eps=EPS,
            whole=whole,
        )  # fmt: skip
        bound = ROUNDING * (24 + np.sqrt(n_heads * d)) * np.abs(want).max()
        case = f"heads {heads}, {kv}"
        rig.compare(f"queries, {case}", q.read(), want.reshape(n_rows, -1), bound)
        _compare_cache(rig, case, cache, filled, bound)


def _compare_cache(
    rig: Rig, case: str, cache: LayerCache, filled: reference.KvArrays, bound: float
) -> None:
    """Compare what was written to the cache, and where."""
    is_half = cache.pools.dtype == "f16"
    for name, pool, want in (
        ("keys", cache.pools.keys[LAYER], filled.keys),
        ("values", cache.pools.values[LAYER], filled.values),
    ):
        after = rig.memory.read(pool)
        rig.expect(
            f"{case}: wrote {name} elsewhere", np.array_equal(np.isnan(after), np.isnan(want))
        )
        got, exact = after[~np.isnan(want)], want[~np.isnan(want)]
        room = bound + (2.0**-11 * np.abs(exact) + 2.0**-25) * is_half
        rig.compare(f"{name}, {case}", got, exact, room)


def check_quantize_kv(rig: Rig, dtype: str, shapes: Sequence[Heads] = PACKED_HEADS) -> None:
    """Check scales, codes and places; a scale may be the neighbouring float16, a code the
    neighbouring one where a number is between two."""
    for heads in shapes:
        config, d = _config(heads), heads[2]
        rng, n_rows = np.random.default_rng(d), len(SOMEWHERE.slots)
        cache = LayerCache.scattered(rig, config, dtype, 3, 100)
        k, v = (_kv_numbers((n_rows, heads[1], d), rng) for _ in range(2))
        q = normal(rng, n_rows, heads[0] * d)
        waiting = KvStaging.make(config, n_rows + 2, rig.memory)
        for tensor, numbers in ((waiting.keys, k), (waiting.values, v)):
            rig.poison(tensor)
            rig.memory.write(tensor, numbers)
        batch = replace(rig.batch(SOMEWHERE.rows, bucket=n_rows + 2), kv_staging=waiting)
        queries = rig.input("q", q)
        rig.run(recording(ops.quantize_kv, batch, "quantize", config, cache.pools, LAYER, queries))
        format = KV_FORMATS[dtype]
        for pool, numbers, storage in (
            (cache.pools.keys, k, format.keys), (cache.pools.values, v, format.values),
        ):  # fmt: skip
            transformed = numbers.astype(np.float64) @ cache.hadamard.T
            _check_words(rig, pool_words(rig, pool[LAYER]), transformed, storage, cache)
        after = rig.memory.read(queries)[:n_rows, : heads[0] * d].reshape(n_rows, heads[0], d)
        q_ = q.astype(np.float64).reshape(n_rows, heads[0], d)
        bound = 16 * ROUNDING * np.linalg.norm(q_, axis=-1, keepdims=True)
        rig.compare(f"queries, {dtype}, {heads}", after, q_ @ cache.hadamard.T, bound)


def _kv_numbers(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Return numbers of all sizes, heads with one that is large, a head of zeros."""
    x = rng.normal(size=shape) * 10.0 ** rng.integers(-3, 3, (*shape[:-1], 1))
    x[1::3, :, 5] *= 40
    x[2, 0] = 0
    return x.astype(np.float32)


def _check_words(rig: Rig, words: Array, x: Array, storage: KvStorage, cache: LayerCache) -> None:
    """Compare what was stored of x (n_rows, n_kv_heads, head_dim) with the twin."""
    name, d = storage.name, x.shape[-1]
    block, case = pack_block(d), f"{storage.name}, {x.shape}"
    blocks = cache.tables[SOMEWHERE.slots, SOMEWHERE.positions // 16]
    at = SOMEWHERE.positions % 16
    data, scale_words = token_words(words, storage, d)
    rows = np.concatenate([data[blocks, :, at], scale_words[blocks, :, at]], axis=-1)
    found = kv_reference.unpack(name, rows, 1, d, block)
    codes, scale = found[0][..., 0, :], found[1][..., 0, :, :]
    largest = np.abs(x.reshape(*x.shape[:-1], -1, block)).max(-1)[..., None]
    hadamard = cache.pools.format.hadamard
    off = (2.0**-10 + 64 * ROUNDING * hadamard) * np.minimum(largest, 65504) + 2.0**-24
    if name == "nl4":  # fitted to levels, and a number between two may take either
        off = off + 0.004 * largest
    rig.compare(f"scales, {case}", scale, kv_reference.scales(name, x, block), off)
    exact = kv_reference.encode(name, x, block, scale)
    rig.expect(f"the codes, {case}", bool((codes != exact).mean() < 0.01))
    got, best = (kv_reference.decode(name, each, block, scale) for each in (codes, exact))
    room = np.repeat(largest, block, axis=-1).reshape(x.shape) * (8 * ROUNDING + 2.0**-13)
    rig.compare(case, np.abs(got - x), np.abs(best - x), room)
    untouched = np.ones(words.shape, bool)
    for part in token_words(untouched, storage, d):
        part[blocks, :, at] = False
    rig.expect(f"wrote outside its tokens, {case}", bool((words[untouched] == POISON).all()))


def check_inverse_hadamard(rig: Rig) -> None:
    for heads in ((2, 1, 8), (9, 3, 64), (2, 1, 48), (6, 2, 128)):
        n_heads, _, d = heads
        config, n_rows = _config(heads), len(SOMEWHERE.slots)
        x = normal(np.random.default_rng(d), n_rows, n_heads * d)
        given, batch = rig.input("x", x), rig.batch(SOMEWHERE.rows, bucket=n_rows + 1)
        rig.run(recording(ops.inverse_hadamard, batch, "back", config, given))
        got = rig.memory.read(given)[:n_rows, : n_heads * d].reshape(n_rows, n_heads, d)
        parts = x.astype(np.float64).reshape(got.shape)
        turn = kv_reference.hadamard_matrix(d, hadamard_size(d))
        bound = 16 * ROUNDING * np.linalg.norm(parts, axis=-1, keepdims=True)
        rig.compare(f"{heads}", got, kv_reference.inverse_hadamard(parts, turn), bound)


CHECKS: dict[str, Callable[[Rig], None]] = {
    **{f"qkv {dtype}": partial(check_qkv, dtype=dtype) for dtype in FORMATS},
    "qk_norm_rope": check_qk_norm_rope,
    **{f"attention {dtype}": partial(check_attention, dtype=dtype) for dtype in KV_FORMATS},
    "attention_merge": check_attention_merge,
    **{
        f"attention_weights {dtype}": partial(check_attention_weights, dtype=dtype)
        for dtype in KV_FORMATS
    },
    **{f"quantize_kv {dtype}": partial(check_quantize_kv, dtype=dtype) for dtype in PACKED},
    "inverse_hadamard": check_inverse_hadamard,
}
