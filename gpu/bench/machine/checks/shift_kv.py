"""Checks of shifts of cached tokens to other positions, in every KV format."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from gpu import ops
from gpu.bench.machine.kv_cache import LAYER, LayerCache, pool_words, token_words
from gpu.bench.machine.rig import ROUNDING, Array, Rig, op_config, recording
from gpu.kv.blocks import BLOCK_TOKENS
from gpu.kv.copies import TokenMove
from gpu.kv.formats import KV_FORMATS, KvStorage, pack_block
from gpu.models.rope import rope_cos_sin
from gpu.reference import kv as kv_reference
from gpu.reference import ops as reference

CONTEXT = 112
FILLED = {0: 100, 2: 80}
SHIFTS = {(0, 3): (1, 4), (0, 31): (1, 20), (2, 50): (1, 21), (2, 0): (1, 111), (0, 99): (1, 99)}
"""Moves from (slot, position) to another: up, down, across blocks, far, and without a shift."""
HEADS = ((2, 1, 8), (9, 3, 64), (3, 3, 80))
"""n_heads, n_kv_heads, head_dim"""


class MovedCache:
    """A cache whose tokens are moved.

    cache     as it was before
    moves     what was carried out in layer LAYER
    cos_sin   (context, rotary_dim / 2, 2), in double precision
    """

    def __init__(self, rig: Rig, heads: tuple[int, int, int], dtype: str) -> None:
        n_heads, n_kv_heads, head_dim = heads
        config = op_config(n_layers=2, n_heads=n_heads, n_kv_heads=n_kv_heads, head_dim=head_dim)
        self.cache = LayerCache.scattered(rig, config, dtype, 3, CONTEXT)
        self.cache.fill(rig, FILLED, np.random.default_rng(head_dim))
        self.moves = [
            TokenMove(self._place(source), self._place(to), to[1] - source[1])
            for source, to in SHIFTS.items()
        ]
        cos_sin = rope_cos_sin(config, CONTEXT)
        self.cos_sin: Array = cos_sin.astype(np.float64)
        rope = ops.LayerRope(rig.memory.upload("cos_sin", cos_sin), config.rope.attention_factor)
        moves = rig.poison(ops.make_moves(rig.memory, len(self.moves) + 2))
        rig.memory.write(moves, ops.pack_moves(self.moves))
        rig.run(recording(ops.shift_kv, "shift", config, moves, rope, self.cache.pools, LAYER))

    def _place(self, at: tuple[int, int]) -> int:
        slot, position = at
        block = int(self.cache.tables[slot][position // BLOCK_TOKENS])
        return block * BLOCK_TOKENS + position % BLOCK_TOKENS


def check_shift_kv(rig: Rig, dtype: str) -> None:
    for heads in HEADS:
        moved, case = MovedCache(rig, heads, dtype), f"{dtype}, heads {heads}"
        want, pools = moved.cache.arrays(), moved.cache.pools
        kv_reference.shift_kv(want, moved.moves, moved.cos_sin, 1.0)
        keys, values = (
            rig.memory.read(pool[LAYER]).astype(np.float64) for pool in (pools.keys, pools.values)
        )
        same = np.array_equal(values, want.values, equal_nan=True)
        rig.expect(f"{case}: values were not copied as they are", same)
        written = ~np.isnan(want.keys)
        rig.expect(f"{case}: wrote elsewhere", np.array_equal(~np.isnan(keys), written))
        size = np.linalg.norm(want.keys, axis=-1, keepdims=True)
        bound = np.broadcast_to((8 * ROUNDING + 2.0**-11 * (dtype == "f16")) * size, keys.shape)
        rig.compare(f"keys, {case}", keys[written], want.keys[written], bound[written])


def check_shift_quantized_kv(rig: Rig, dtype: str) -> None:
    """Compare numbers, not codes: a number between two codes may get either."""
    format = KV_FORMATS[dtype]
    for heads in HEADS:
        moved, case = MovedCache(rig, heads, dtype), f"{dtype}, heads {heads}"
        for kind, pool, old, storage in (
            ("keys", moved.cache.pools.keys, moved.cache.stored[0], format.keys),
            ("values", moved.cache.pools.values, moved.cache.stored[1], format.values),
        ):
            words = pool_words(rig, pool[LAYER])
            untouched = np.ones(words.shape, bool)
            for move in moved.moves:
                source = divmod(move.source, BLOCK_TOKENS)
                to = divmod(move.destination, BLOCK_TOKENS)
                was, new = _token(old, storage, heads, source), _token(words, storage, heads, to)
                for part in token_words(untouched, storage, heads[2]):
                    part[to[0], :, to[1]] = False
                if kind == "values" or move.shift == 0:
                    rig.expect(f"{kind}, {case}: not copied as they are", np.array_equal(new, was))
                else:
                    _compare_key(rig, case, moved, new, move, storage)
            kept = np.array_equal(words[untouched], old[untouched])
            rig.expect(f"{kind}, {case}: wrote outside its tokens", kept)


def _token(
    words: Array, storage: KvStorage, heads: tuple[int, int, int], at: tuple[int, int]
) -> Array:
    """Return the words of one token, (n_kv_heads, words)."""
    return np.concatenate(
        [part[at[0], :, at[1]] for part in token_words(words, storage, heads[2])], -1
    )


def _compare_key(
    rig: Rig, case: str, moved: MovedCache, words: Array, move: TokenMove, storage: KvStorage
) -> None:
    """Compare a rotated key with what the reference's rotation and quantisation leave of it."""
    cache, name = moved.cache, storage.name
    d = cache.keys.shape[-1]
    block = pack_block(d)
    source = divmod(move.source, BLOCK_TOKENS)
    key = cache.keys[source[0], :, source[1]].astype(np.float64)
    rotation = moved.cos_sin[abs(move.shift)] * (1, np.sign(move.shift))
    codes, scale = kv_reference.unpack(name, words, 1, d, block)
    got = kv_reference.decode(name, codes[:, 0], block, scale[:, 0])
    codes, scale = kv_reference.shift_quantized_kv(name, key, rotation, cache.hadamard, block)
    best = kv_reference.decode(name, codes, block, scale)
    exact = reference.apply_rope(key @ cache.hadamard, rotation) @ cache.hadamard.T
    room = np.abs(best - exact) + 0.01 * np.abs(exact).max()  # as good as the twin's
    rig.compare(f"keys, {case}", np.abs(got - exact), 0 * exact, room)


CHECKS: dict[str, Callable[[Rig], None]] = {
    **{
        f"shift_quantized_kv {name}" if format.packed else f"shift_kv {name}": partial(
            check_shift_quantized_kv if format.packed else check_shift_kv, dtype=name
        )
        for name, format in KV_FORMATS.items()
    },
}
