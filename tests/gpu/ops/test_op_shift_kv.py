"""Tokens moved to other positions in a cache of every format, against their twins."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpu import ops
from gpu.config import RopeConfig
from gpu.kv.copies import TokenMove
from gpu.kv.formats import KV_FORMATS, pack_block
from gpu.models.rope import rope_cos_sin
from gpu.reference import kv as reference
from gpu.reference.ops import apply_rope
from tests.gpu.kv.cache import LAYER, Cache, left_over, pool_words, token_words
from tests.gpu.ops.rig import ROUNDING, Array, Rig, as_kind, compare, llama_config

pytestmark = pytest.mark.parity
CONTEXT = 112
SHIFTS = {(0, 3): (1, 4), (0, 4): (1, 5), (0, 31): (1, 20), (2, 50): (1, 21), (0, 99): (1, 99),
          (2, 0): (1, 111), (2, 79): (1, 1), (0, 16): (1, 0)}  # fmt: skip
"""Moves from (slot, position) to another: up, down, far, across blocks, and without a shift."""
HEADS = [(2, 1, 8), (9, 3, 64), (3, 3, 80), (6, 2, 128)]
ROTARY = {"all": (None, RopeConfig()), "part": (8, RopeConfig()), "none": (0, RopeConfig()),
          "factor": (None, RopeConfig(attention_factor=1.37))}  # fmt: skip

CASES = [*((heads, "all") for heads in HEADS), *(((4, 2, 24), rotary) for rotary in ROTARY)]
"""Heads of every size with all numbers rotated, and every kind of rotation on one."""


class Moved:
    """A cache in which tokens were moved, before and after."""

    def __init__(self, rig: Rig, heads: tuple[int, int, int], dtype: str, rotary: str) -> None:
        dim, rope = ROTARY[rotary]
        n_heads, n_kv_heads, head_dim = heads
        config = llama_config(
            n_layers=2, n_heads=n_heads, n_kv_heads=n_kv_heads, head_dim=head_dim,
            rotary_dim=dim, rope=rope,
        )  # fmt: skip
        self.cache = cache = Cache.scattered(rig, config, dtype, 3, CONTEXT, seed=head_dim)
        cache.fill(rig, {0: 100, 2: 80}, np.random.default_rng(head_dim))
        self.moves = [
            TokenMove(self._place(source), self._place(to), to[1] - source[1])
            for source, to in SHIFTS.items()
        ]
        self.cos_sin = None if dim == 0 else rope_cos_sin(config, CONTEXT)
        self.factor = rope.attention_factor
        layer = None
        if self.cos_sin is not None:
            layer = ops.LayerRope(rig.memory.upload("cos_sin", self.cos_sin), self.factor)
        moves = ops.make_moves(rig.memory, len(self.moves) + 5)
        rig.poison(moves)
        rig.memory.write(moves, ops.pack_moves(self.moves))
        rig.run(lambda rec: ops.shift_kv(rec, "shift", config, moves, layer, cache.pools, LAYER))
        self.pools = (cache.pools.keys[LAYER], cache.pools.values[LAYER])

    def _place(self, at: tuple[int, int]) -> int:
        slot, position = at
        return int(self.cache.tables[slot][position // 16]) * 16 + position % 16

    def rotation(self, shift: int) -> Array | None:
        if self.cos_sin is None or shift == 0:
            return None
        cos_sin = self.cos_sin[abs(shift)].astype(np.float64) / self.factor
        return np.asarray(cos_sin * (1, np.sign(shift)))


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize(("heads", "rotary"), CASES, ids=str)
def test_keys_are_rotated_by_the_shift_and_values_copied(
    rig: Rig, heads: tuple[int, int, int], dtype: str, rotary: str
) -> None:
    moved = Moved(rig, heads, dtype, rotary)
    want = moved.cache.arrays()
    cos_sin = None if moved.cos_sin is None else moved.cos_sin.astype(np.float64)
    reference.shift_kv(want, moved.moves, cos_sin, moved.factor)
    keys, values = (rig.memory.read(pool).astype(np.float64) for pool in moved.pools)
    np.testing.assert_array_equal(values, left_over(rig, want.values))
    written = ~np.isnan(want.keys)
    np.testing.assert_array_equal(keys[~written], rig.leftover)
    size = np.broadcast_to(np.linalg.norm(want.keys, axis=-1, keepdims=True), keys.shape)
    bound = (8 * ROUNDING + (2.0**-11 if dtype == "f16" else 0)) * size
    case = f"{heads} {dtype} {rotary}"
    compare("shift_kv", case, keys[written], want.keys[written], bound[written], 0)
    for move in moved.moves:
        if move.shift == 0:
            at, to = divmod(move.source, 16), divmod(move.destination, 16)
            np.testing.assert_array_equal(keys[to[0], :, to[1]], keys[at[0], :, at[1]])


@pytest.mark.parametrize("dtype", [name for name, format in KV_FORMATS.items() if format.packed])
@pytest.mark.parametrize(("heads", "rotary"), CASES, ids=str)
def test_quantised_keys_are_rotated_and_quantised_again(
    rig: Rig, heads: tuple[int, int, int], dtype: str, rotary: str
) -> None:
    """Codes may be the neighbouring ones where a number is between two, so numbers are compared."""
    moved, case = Moved(rig, heads, dtype, rotary), f"{heads} {dtype} {rotary}"
    cache, format, d = moved.cache, KV_FORMATS[dtype], heads[2]
    block = pack_block(d)
    after = [pool_words(rig.memory, pool) for pool in moved.pools]
    untouched = [np.ones(words.shape, bool) for words in after]
    for move in moved.moves:
        at, to = divmod(move.source, 16), divmod(move.destination, 16)
        rotation = moved.rotation(move.shift)
        for words, old, keep, storage in zip(
            after, cache.stored, untouched, (format.keys, format.values), strict=True
        ):
            for part, was, mark in zip(
                token_words(words, storage, d), token_words(old, storage, d),
                token_words(keep, storage, d), strict=True,
            ):  # fmt: skip
                mark[to[0], :, to[1]] = False
                if (storage is format.values and words is after[1]) or rotation is None:
                    np.testing.assert_array_equal(part[to[0], :, to[1]], was[at[0], :, at[1]])
        if rotation is None:
            continue
        key = cache.keys[at[0], :, at[1]].astype(np.float64)
        parts = [part[to[0], :, to[1]] for part in token_words(after[0], format.keys, d)]
        codes, scale = reference.unpack(format.keys.name, np.concatenate(parts, -1), 1, d, block)
        got = reference.decode(format.keys.name, codes[:, 0], block, scale[:, 0])
        wanted, want_scale = reference.shift_quantized_kv(
            format.keys.name, key, rotation, cache.hadamard, block
        )
        want = reference.decode(format.keys.name, wanted, block, want_scale)
        exact = apply_rope(key @ cache.hadamard, rotation) @ cache.hadamard.T
        size = np.abs(exact).max()
        error = np.abs(want - exact) + 0.01 * size  # as good as the twin's
        compare("shift_quantized_kv", case, np.abs(got - exact), 0 * exact, error, 0)
        assert (np.abs(got - want) > 0.002 * size).mean() < 0.02, case
    for words, old, keep in zip(after, cache.stored, untouched, strict=True):
        np.testing.assert_array_equal(words[keep], old[keep])


@pytest.mark.parametrize("dtype", ["f16", "rotated4"])
def test_moves_on_a_real_gpus_lanes(rig: Rig, dtype: str) -> None:
    """A GPU takes other numbers of lanes; the result is the same."""
    words = []
    for software in (True, False):
        kind = Rig(as_kind(rig.device, software), rig.kernels)
        moved = Moved(kind, (9, 3, 64), dtype, "all")
        words.append(pool_words(kind.memory, replace(moved.pools[0], dtype="u32")))
    np.testing.assert_array_equal(*words)
