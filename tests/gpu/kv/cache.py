"""Paged caches for tests of single ops: blocks in a random order, NaN wherever nothing was
written."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gpu.config import ModelConfig
from gpu.kv.blocks import BLOCK_TOKENS, KvShape, blocks_for
from gpu.kv.formats import KvStorage, hadamard_size, pack_block
from gpu.kv.pools import KvPools
from gpu.reference import kv as reference
from gpu.reference.ops import KvArrays, StepRows
from gpu.step import Row
from gpu.webgpu.buffers import Memory, Tensor
from tests.gpu.ops.rig import POISON, Array, Rig, rows_at

LAYER = 1
"""Layer that the ops work on; configurations here have two."""

NUMPY = {"f32": np.float32, "f16": np.float16}


@dataclass(frozen=True)
class Rows:
    """The rows of a pass as arrays."""

    slots: Array
    positions: Array

    @classmethod
    def of(cls, *at: tuple[int, int]) -> Rows:
        """Return rows from (slot, position) pairs."""
        slots, positions = zip(*at, strict=True)
        return cls(np.array(slots), np.array(positions))

    def on(self, cache: Cache) -> StepRows:
        """Return the rows as the reference takes them, with the block tables of `cache`."""
        return StepRows(self.slots, self.positions, cache.tables)

    @property
    def step(self) -> list[Row]:
        return rows_at(self.positions.tolist(), self.slots.tolist())


@dataclass(frozen=True)
class Cache:
    """One layer's cache on the device, and a copy on the host.

    keys, values  as attention computes with them
    stored        as uploaded (words, if the cache is quantised)
    """

    pools: KvPools
    tables: Array
    keys: Array
    values: Array
    stored: tuple[Array, Array]

    def arrays(self) -> KvArrays:
        """Copies in double precision, as the reference takes them."""
        return KvArrays(self.keys.astype(np.float64), self.values.astype(np.float64))

    @classmethod
    def scattered(
        cls, rig: Rig, config: ModelConfig, dtype: str, n_slots: int, n_tokens: int, seed: int
    ) -> Cache:
        """Return a cache of slots of up to `n_tokens` tokens with randomly assigned blocks, two of
        them unused; all NaN."""
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
    def hadamard(self) -> Array:
        """The transform of this cache's heads; the identity if its format has none."""
        d = self.keys.shape[-1]
        rotated = self.pools.format.hadamard
        return reference.hadamard_matrix(d, hadamard_size(d)) if rotated else np.eye(d)

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
                    made = _store(made, storage, words, blocks, at % BLOCK_TOKENS)
                pool[blocks, :, at % BLOCK_TOKENS] = made
        self.upload(rig)
        if not (format.packed or np.isnan(rig.leftover)):
            for pool, tensor in ((self.keys, self.pools.keys), (self.values, self.pools.values)):
                rig.memory.write(tensor[LAYER], left_over(rig, pool))

    def upload(self, rig: Rig) -> None:
        rig.memory.write(self.pools.keys[LAYER], self.stored[0])
        rig.memory.write(self.pools.values[LAYER], self.stored[1])


def left_over(rig: Rig, pool: Array) -> Array:
    """Return a pool with what the device holds where nothing was written."""
    return np.where(np.isnan(pool), np.array(rig.leftover, pool.dtype), pool)


def _store(made: Array, storage: KvStorage, words: Array, blocks: Array, at: Array) -> Array:
    """Quantise heads (n_tokens, n_kv_heads, head_dim) into positions of `words`; return the numbers
    that attention reads there."""
    name, block = storage.name, pack_block(made.shape[-1])
    scale = reference.scales(name, made, block)
    codes = reference.encode(name, made, block, scale)
    packed = reference.pack(name, codes[..., None, :], scale[..., None, :, :])
    for part, of_token in zip(token_words(words, storage, made.shape[-1]),
                              np.split(packed, [made.shape[-1] * storage.bits // 32], axis=-1),
                              strict=True):  # fmt: skip
        part[blocks, :, at] = of_token
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
