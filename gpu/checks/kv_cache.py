"""Paged caches for checks of single ops: blocks in a random order, poison where nothing was
written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpu.checks.rig import POISON, Array, Rig, op_config, rows_at
from gpu.config import ModelConfig
from gpu.kv.blocks import BLOCK_TOKENS, KvShape, blocks_for
from gpu.kv.formats import KvStorage, hadamard_size, pack_block
from gpu.kv.pools import KvPools
from gpu.reference import kv as reference
from gpu.reference.ops import KvArrays, StepRows
from gpu.step import Row
from gpu.webgpu.buffers import Memory, Tensor

LAYER = 1
"""Layer that the ops work on; the configurations of checks have two."""
NUMPY = {"f32": np.float32, "f16": np.float16}

Heads = tuple[int, int, int]
"""n_heads, n_kv_heads, head_dim"""


def heads_config(heads: Heads, **changes: object) -> ModelConfig:
    """Return a configuration of two layers with these heads."""
    n_heads, n_kv_heads, head_dim = heads
    return op_config(
        n_layers=2, n_heads=n_heads, n_kv_heads=n_kv_heads, head_dim=head_dim, **changes
    )


@dataclass(frozen=True, slots=True)
class RowPlaces:
    """Slots and positions of the rows of a step."""

    slots: Array
    positions: Array

    @classmethod
    def of(cls, *at: tuple[int, int]) -> RowPlaces:
        """Return rows from (slot, position) pairs."""
        slots, positions = zip(*at, strict=True)
        return cls(np.array(slots), np.array(positions))

    @property
    def rows(self) -> list[Row]:
        return rows_at(self.positions.tolist(), self.slots.tolist())

    @property
    def lengths(self) -> dict[int, int]:
        """Tokens of each slot up to its last row."""
        found: dict[int, int] = {}
        for slot, position in zip(self.slots.tolist(), self.positions.tolist(), strict=True):
            found[slot] = max(found.get(slot, 0), position + 1)
        return found


@dataclass(frozen=True, slots=True)
class LayerCache:
    """One layer's cache on the device, and a copy on the host.

    keys, values  as attention computes with them
    stored        as uploaded (words, if the cache is quantised)
    """

    pools: KvPools
    tables: Array
    keys: Array
    values: Array
    stored: tuple[Array, Array]

    @classmethod
    def scattered(
        cls, rig: Rig, config: ModelConfig, dtype: str, n_slots: int, n_tokens: int, seed: int = 0
    ) -> LayerCache:
        """Return a cache of slots of up to `n_tokens` tokens with randomly assigned blocks, two of
        them unused; all poisoned."""
        per_slot = blocks_for(n_tokens)
        n_blocks = n_slots * per_slot + 2
        shape = KvShape(n_blocks, per_slot * BLOCK_TOKENS)
        pools = KvPools(config, shape, dtype, n_slots, rig.memory)
        deal = np.random.default_rng(seed).permutation(n_blocks)
        tables = deal[: n_slots * per_slot].reshape(n_slots, per_slot)
        for slot in range(n_slots):
            pools.set_blocks(slot, tables[slot].tolist())
        empty = np.full(pools.keys[LAYER].shape, np.nan).astype(NUMPY.get(dtype, np.float64))
        keys, values = empty, empty.copy()
        stored = (keys, values)
        if pools.format.packed:
            sizes = [pools.keys[LAYER].n_bytes, pools.values[LAYER].n_bytes]
            first, second = (np.full(n // 4, POISON, np.uint32) for n in sizes)
            kv_heads = (n_blocks, config.n_kv_heads, -1)
            stored = (first.reshape(kv_heads), second.reshape(kv_heads))
        cache = cls(pools, tables, keys, values, stored)
        cache.upload(rig, *stored)
        return cache

    @property
    def hadamard(self) -> Array:
        """The transform of this cache's heads; the identity if its format has none."""
        d = self.keys.shape[-1]
        hadamard = self.pools.format.hadamard
        return reference.hadamard_matrix(d, hadamard_size(d)) if hadamard else np.eye(d)

    def arrays(self) -> KvArrays:
        """Copies in double precision, as the reference takes them."""
        return KvArrays(self.keys.astype(np.float64), self.values.astype(np.float64))

    def rows(self, at: RowPlaces) -> StepRows:
        """Return the rows as the reference takes them."""
        return StepRows(at.slots, at.positions, self.tables)

    def fill(self, rig: Rig, lengths: dict[int, int], rng: np.random.Generator) -> None:
        """Give each slot random keys and values for its first tokens."""
        format = self.pools.format
        for slot, n_tokens in lengths.items():
            at = np.arange(n_tokens)
            blocks = self.tables[slot][at // BLOCK_TOKENS]
            for pool, words, storage in (
                (self.keys, self.stored[0], format.keys),
                (self.values, self.stored[1], format.values),
            ):
                made = rng.normal(size=(n_tokens, pool.shape[1], pool.shape[3]))
                if storage.packed:
                    made = _store(made, storage, words, (blocks, at % BLOCK_TOKENS))
                pool[blocks, :, at % BLOCK_TOKENS] = made
        self.upload(rig, *(self.stored if format.packed else map(rig.unwritten, self.stored)))

    def upload(self, rig: Rig, keys: Array, values: Array) -> None:
        rig.memory.write(self.pools.keys[LAYER], keys)
        rig.memory.write(self.pools.values[LAYER], values)

    def places(self, at: RowPlaces) -> tuple[Array, Array]:
        """Return the blocks of rows, and their places in these."""
        return self.tables[at.slots, at.positions // BLOCK_TOKENS], at.positions % BLOCK_TOKENS


def _store(made: Array, storage: KvStorage, words: Array, at: Sequence[Array]) -> Array:
    """Quantise heads (n_tokens, n_kv_heads, head_dim) into `words` at (blocks, places); return the
    numbers that attention reads there."""
    name, d = storage.name, made.shape[-1]
    block = pack_block(d)
    scale = reference.scales(name, made, block)
    codes = reference.encode(name, made, block, scale)
    packed = reference.pack(name, codes[..., None, :], scale[..., None, :, :])
    parts = np.split(packed, [d * storage.bits // 32], axis=-1)
    for part, of_token in zip(token_words(words, storage, d), parts, strict=True):
        part[at[0], :, at[1]] = of_token
    return reference.decode(name, codes, block, scale)


def token_words(words: Array, storage: KvStorage, head_dim: int) -> tuple[Array, Array]:
    """Return views of a pool's words (n_blocks, n_kv_heads, words): numbers and scales of each
    token, (n_blocks, n_kv_heads, BLOCK_TOKENS, …)."""
    n_data = BLOCK_TOKENS * head_dim * storage.bits // 32
    shape = (*words.shape[:2], BLOCK_TOKENS, -1)
    return words[..., :n_data].reshape(shape), words[..., n_data:].reshape(shape)


def pool_words(memory: Memory, pool: Tensor) -> Array:
    """Return a pool's contents, (n_blocks, n_kv_heads, words)."""
    flat = replace(pool, shape=(pool.n_bytes // 4,), dtype="u32")
    return memory.read(flat).reshape(*pool.shape[:2], -1)


def compare_written(
    rig: Rig,
    result: str,
    case: object,
    cache: LayerCache,
    want: KvArrays,
    bounds: tuple[Array | float, Array | float],
) -> None:
    """Compare what an op wrote to a cache that is not quantised, and where. `bounds`: of keys and
    values before they are rounded to the format of the cache, one for all or one for each that is
    there."""
    rounding, tiny = (2.0**-11, 2.0**-25) if cache.pools.dtype == "f16" else (0.0, 0.0)
    for name, pool, numbers, bound in (
        ("keys", cache.pools.keys[LAYER], want.keys, bounds[0]),
        ("values", cache.pools.values[LAYER], want.values, bounds[1]),
    ):
        after = rig.memory.read(pool)
        same = np.array_equal(np.isnan(after), np.isnan(numbers))
        rig.expect(f"{result}, {case}: wrote {name} in the wrong places", same)
        got, exact = after[~np.isnan(after)], numbers[~np.isnan(numbers)]
        room = bound + rounding * np.abs(exact) + tiny
        rig.compare(f"{result}.{name}.{cache.pools.dtype}", case, got, exact, room)
