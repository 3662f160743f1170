"""Paged caches for the tests of single ops: blocks in an odd order, NaN wherever nobody wrote."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpu.config import ModelConfig
from gpu.kv.blocks import BLOCK_TOKENS, KvShape, blocks_for
from gpu.kv.pools import KvPools
from gpu.step import Row
from tests.gpu.rig import Array, Rig, rows_at

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
    """One layer's cache on the device and the same on the host, as stored."""

    pools: KvPools
    tables: Array
    keys: Array
    values: Array

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
        empty = np.full((n_blocks, config.n_kv_heads, BLOCK_TOKENS, config.head_dim), np.nan)
        cache = cls(pools, tables, empty.astype(NUMPY[dtype]), empty.astype(NUMPY[dtype]))
        cache.upload(rig)
        return cache

    def fill(self, rig: Rig, lengths: dict[int, int], rng: np.random.Generator) -> None:
        """Give each slot random keys and values for its first so many tokens."""
        for slot, n_tokens in lengths.items():
            at = np.arange(n_tokens)
            blocks = self.tables[slot][at // BLOCK_TOKENS]
            for pool in (self.keys, self.values):
                shape = (n_tokens, pool.shape[1], pool.shape[3])
                pool[blocks, :, at % BLOCK_TOKENS] = rng.normal(size=shape)
        self.upload(rig)

    def upload(self, rig: Rig) -> None:
        rig.memory.write(self.pools.keys[LAYER], self.keys)
        rig.memory.write(self.pools.values[LAYER], self.values)
