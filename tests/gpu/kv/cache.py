"""Paged caches for the tests of single ops: blocks in an odd order, NaN wherever nobody wrote."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gpu.config import ModelConfig
from gpu.kv.blocks import BLOCK_TOKENS, KvShape, blocks_for
from gpu.kv.formats import Storage, pack_block, rotation_span
from gpu.kv.pools import KvPools
from gpu.reference import kv as reference
from gpu.step import Row
from gpu.webgpu.buffers import Memory, Tensor
from tests.gpu.rig import POISON, Array, Rig, rows_at

LAYER = 1
"""Which layer the ops work on; configurations here have two."""

NUMPY = {"f32": np.float32, "f16": np.float16}


@dataclass(frozen=True)
class Rows:
    """The rows of a step as arrays."""

    slots: Array
    positions: Array

    @classmethod
    def of(cls, *at: tuple[int, int]) -> Rows:
        """From (slot, position) of each row."""
        slots, positions = zip(*at, strict=True)
        return cls(np.array(slots), np.array(positions))

    @property
    def step(self) -> list[Row]:
        return rows_at(self.positions.tolist(), self.slots.tolist())


@dataclass(frozen=True)
class Cache:
    """One layer's cache on the device and the same on the host: `keys` and `values` as attention
    computes with them, `stored` as they are uploaded (words, where the cache is quantised)."""

    pools: KvPools
    tables: Array
    keys: Array
    values: Array
    stored: tuple[Array, Array]

    @classmethod
    def scattered(
        cls, rig: Rig, config: ModelConfig, dtype: str, n_slots: int, n_tokens: int, seed: int
    ) -> Cache:
        """Slots of up to `n_tokens` tokens, their blocks dealt at random, two blocks left over;
        everything NaN."""
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
            words = [np.full(n // 4, POISON, np.uint32) for n in sizes]
            stored = tuple(w.reshape(n_blocks, config.n_kv_heads, -1) for w in words)
        cache = cls(pools, tables, keys, values, stored)
        cache.upload(rig)
        return cache

    @property
    def rotation(self) -> Array:
        """What turned the heads of this cache; nothing where its format turns none."""
        d = self.keys.shape[-1]
        rotated = self.pools.format.rotated
        return reference.rotation(d, rotation_span(d)) if rotated else np.eye(d)

    def fill(self, rig: Rig, lengths: dict[int, int], rng: np.random.Generator) -> None:
        """Give each slot random keys and values for its first so many tokens."""
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
                    made = _store(made, storage, words, blocks, at % BLOCK_TOKENS)
                pool[blocks, :, at % BLOCK_TOKENS] = made
        self.upload(rig)

    def upload(self, rig: Rig) -> None:
        rig.memory.write(self.pools.keys[LAYER], self.stored[0])
        rig.memory.write(self.pools.values[LAYER], self.stored[1])


def _store(made: Array, storage: Storage, words: Array, blocks: Array, at: Array) -> Array:
    """Quantise heads (n_tokens, n_kv_heads, head_dim) into places of `words`; returns what
    attention reads there."""
    name, block = storage.name, pack_block(made.shape[-1])
    grid = reference.grids(name, made, block)
    codes = reference.encode(name, made, block, grid)
    packed = reference.pack(name, codes[..., None, :], grid[..., None, :, :])
    for part, of_token in zip(token_words(words, storage, made.shape[-1]),
                              np.split(packed, [made.shape[-1] * storage.bits // 32], axis=-1),
                              strict=True):  # fmt: skip
        part[blocks, :, at] = of_token
    return reference.decode(name, codes, block, grid)


def token_words(words: Array, storage: Storage, head_dim: int) -> tuple[Array, Array]:
    """Views of a pool's words (n_blocks, n_kv_heads, words): the numbers and the grids of each
    token, (n_blocks, n_kv_heads, BLOCK_TOKENS, …)."""
    n_data = BLOCK_TOKENS * head_dim * storage.bits // 32
    shape = (*words.shape[:2], BLOCK_TOKENS, -1)
    return words[..., :n_data].reshape(shape), words[..., n_data:].reshape(shape)


def pool_words(memory: Memory, pool: Tensor) -> Array:
    """What a pool holds: (n_blocks, n_kv_heads, words)."""
    flat = replace(pool, shape=(pool.n_bytes // 4,), dtype="u32")
    return memory.read(flat).reshape(*pool.shape[:2], -1)
