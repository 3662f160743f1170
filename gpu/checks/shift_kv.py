"""Checks of shifts of cached tokens to other positions, in every KV format."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpu import ops
from gpu.checks.kv_cache import LAYER, Heads, LayerCache, heads_config, pool_words, token_words
from gpu.checks.rig import ROUNDING, Array, Rig, check_each, f64
from gpu.config import RopeConfig
from gpu.kv.blocks import BLOCK_TOKENS
from gpu.kv.copies import TokenMove
from gpu.kv.formats import KV_FORMATS, KvStorage, pack_block
from gpu.models.rope_tables import rope_cos_sin
from gpu.reference import kv as reference
from gpu.reference.ops import apply_rope

CONTEXT = 112
FILLED = {0: 100, 2: 80}
SHIFTS = {(0, 3): (1, 4), (0, 4): (1, 5), (0, 31): (1, 20), (2, 50): (1, 21), (0, 99): (1, 99),
          (2, 0): (1, 111), (2, 79): (1, 1), (0, 16): (1, 0)}  # fmt: skip
"""Moves from (slot, position) to another: up, down, far, across blocks, and without a shift."""
ROTARY = {"all": (None, RopeConfig()), "part": (8, RopeConfig()), "none": (0, RopeConfig()),
          "factor": (None, RopeConfig(attention_factor=1.37))}  # fmt: skip
"""Kinds of rotation: how many numbers of a head are rotated, and how."""


class MovedCache:
    """A cache whose tokens are moved.

    cache     as it was before
    moves     what was carried out in layer LAYER
    cos_sin   (context, rotary_dim / 2, 2) in double precision; None without a rotation
    pools     keys and values on the device, moved
    """

    def __init__(self, rig: Rig, heads: Heads, dtype: str, rotary: str = "all") -> None:
        dim, rope = ROTARY[rotary]
        config = heads_config(heads, rotary_dim=dim, rope=rope)
        self.cache = cache = LayerCache.scattered(rig, config, dtype, 3, CONTEXT, seed=heads[2])
        cache.fill(rig, FILLED, np.random.default_rng(heads[2]))
        self.moves = [
            TokenMove(self._place(source), self._place(to), to[1] - source[1])
            for source, to in SHIFTS.items()
        ]
        self.cos_sin: Array | None = None
        self.factor, layer = rope.attention_factor, None
        if dim != 0:
            cos_sin = rope_cos_sin(config, CONTEXT)
            self.cos_sin = f64(cos_sin)
            layer = ops.LayerRope(rig.memory.upload("cos_sin", cos_sin), self.factor)
        moves = rig.poison(ops.make_moves(rig.memory, len(self.moves) + 5))
        rig.memory.write(moves, ops.pack_moves(self.moves))
        rig.run_op(ops.shift_kv, "shift", config, moves, layer, cache.pools, LAYER)
        self.pools = (cache.pools.keys[LAYER], cache.pools.values[LAYER])

    def _place(self, at: tuple[int, int]) -> int:
        slot, position = at
        block = int(self.cache.tables[slot][position // BLOCK_TOKENS])
        return block * BLOCK_TOKENS + position % BLOCK_TOKENS

    def rotation(self, shift: int) -> Array | None:
        """Return cosines and sines of a shift; None where keys are copied as they are."""
        if self.cos_sin is None or shift == 0:
            return None
        rotation: Array = self.cos_sin[abs(shift)] / self.factor * (1, np.sign(shift))
        return rotation


def check_shift_kv(rig: Rig, dtype: str, heads: Heads, rotary: str = "all") -> None:
    """Compare rotated keys with the twin; values, and keys without a shift, are copied."""
    moved, case = MovedCache(rig, heads, dtype, rotary), f"{heads} {dtype} {rotary}"
    want = moved.cache.arrays()
    reference.shift_kv(want, moved.moves, moved.cos_sin, moved.factor)
    keys, values = (f64(rig.memory.read(pool)) for pool in moved.pools)
    same = np.array_equal(values, rig.unwritten(want.values), equal_nan=True)
    rig.expect(f"{case}: values were not copied as they are", same)
    written = ~np.isnan(want.keys)
    left = rig.unwritten(want.keys)[~written]
    same = np.array_equal(keys[~written], left, equal_nan=True)
    rig.expect(f"{case}: wrote keys elsewhere", same)
    size = np.broadcast_to(np.linalg.norm(want.keys, axis=-1, keepdims=True), keys.shape)
    bound = (8 * ROUNDING + 2.0**-11 * (dtype == "f16")) * size
    rig.compare("shift_kv", case, keys[written], want.keys[written], bound[written])
    for move in moved.moves:
        at, to = divmod(move.source, BLOCK_TOKENS), divmod(move.destination, BLOCK_TOKENS)
        if move.shift == 0:
            same = np.array_equal(keys[to[0], :, to[1]], keys[at[0], :, at[1]])
            rig.expect(f"{case}: a key without a shift was not copied as it is", same)


def check_shift_quantized_kv(rig: Rig, dtype: str, heads: Heads, rotary: str = "all") -> None:
    """Compare numbers, not codes: a number between two codes may get either."""
    moved, case = MovedCache(rig, heads, dtype, rotary), f"{heads} {dtype} {rotary}"
    format, d = KV_FORMATS[dtype], heads[2]
    for name, pool, old, storage in (
        ("keys", moved.pools[0], moved.cache.stored[0], format.keys),
        ("values", moved.pools[1], moved.cache.stored[1], format.values),
    ):
        words = pool_words(rig.memory, pool)
        untouched = np.ones(words.shape, bool)
        for move in moved.moves:
            to = divmod(move.destination, BLOCK_TOKENS)
            was = _token(old, storage, d, divmod(move.source, BLOCK_TOKENS))
            new = _token(words, storage, d, to)
            for part in token_words(untouched, storage, d):
                part[to[0], :, to[1]] = False
            if name == "values" or moved.rotation(move.shift) is None:
                same = np.array_equal(new, was)
                rig.expect(f"{name}, {case}: not copied as they are", same)
            else:
                _compare_key(rig, case, moved, new, move, storage)
        kept = np.array_equal(words[untouched], old[untouched])
        rig.expect(f"{name}, {case}: wrote outside its tokens", kept)


def _token(words: Array, storage: KvStorage, head_dim: int, at: tuple[int, int]) -> Array:
    """Return the words of one token, (n_kv_heads, words)."""
    parts = token_words(words, storage, head_dim)
    return np.concatenate([part[at[0], :, at[1]] for part in parts], -1)


def _compare_key(
    rig: Rig, case: str, moved: MovedCache, words: Array, move: TokenMove, storage: KvStorage
) -> None:
    """Compare a rotated key with what the reference's rotation and quantisation leave of it."""
    cache, name, rotation = moved.cache, storage.name, moved.rotation(move.shift)
    assert rotation is not None
    d = cache.keys.shape[-1]
    block = pack_block(d)
    source = divmod(move.source, BLOCK_TOKENS)
    key = f64(cache.keys[source[0], :, source[1]])
    codes, scale = reference.unpack(name, words, 1, d, block)
    got = reference.decode(name, codes[:, 0], block, scale[:, 0])
    codes, scale = reference.shift_quantized_kv(name, key, rotation, cache.hadamard, block)
    best = reference.decode(name, codes, block, scale)
    exact = apply_rope(key @ cache.hadamard, rotation) @ cache.hadamard.T
    size = np.abs(exact).max()
    room = np.abs(best - exact) + 0.01 * size  # as good as the twin's
    rig.compare("shift_quantized_kv", case, np.abs(got - exact), 0 * exact, room)
    share = (np.abs(got - best) > 0.002 * size).mean()
    rig.expect(f"{case}: {share:.1%} of a key's numbers are not the twin's", share < 0.02)


# ---- of a report -----------------------------------------------------------------------------

MOVED_HEADS: tuple[Heads, ...] = ((2, 1, 8), (9, 3, 64), (3, 3, 80))

CHECKS: dict[str, Callable[[Rig], None]] = {
    f"{'shift_quantized_kv' if format.packed else 'shift_kv'} {name}": check_each(
        check_shift_quantized_kv if format.packed else check_shift_kv,
        *((name, heads) for heads in MOVED_HEADS),
    )
    for name, format in KV_FORMATS.items()
}
