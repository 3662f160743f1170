"""Device memory of the paged KV cache: pools of blocks for every layer, and the block tables."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gpu.config import ModelConfig
from gpu.kv.blocks import BLOCK_TOKENS, KvShape, pool_block_bytes
from gpu.kv.formats import KvStorage, kv_format
from gpu.kv.groups import group_size, single_group
from gpu.webgpu.buffers import ITEM_BYTES, Memory, Tensor


@dataclass(frozen=True, slots=True)
class BlockPart:
    """Keys or values of a layer of every group: `n_bytes` of every block in `pool`, which begin at
    `at` if all parts of a block are stored in a row."""

    pool: Tensor
    at: int
    n_bytes: int


class KvPools:
    """Key and value pools, and block tables.

    keys, values  pool of every layer: [n_blocks][n_kv_heads][BLOCK_TOKENS][head_dim]; for the last
                  two dimensions of a quantised cache see `gpu.kv.formats`. Layer i of every group
                  has the same pool, as no block is in two of their tables
    block_tables  (n_slots, max_blocks) u32 of each group
    blocks        contents of the tables, by group and slot
    block_parts   what a block consists of
    staging       one block, for copies between blocks
    """

    def __init__(
        self, config: ModelConfig, shape: KvShape, dtype: str, n_slots: int, memory: Memory
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self.format = kv_format(dtype)
        self.n_slots = n_slots
        self.groups = groups = shape.groups or single_group(config)
        self._memory = memory

        def make(name: str, kind: str, storage: KvStorage) -> Tensor:
            words = shape.n_blocks * pool_block_bytes(config, storage) // ITEM_BYTES["u32"]
            tensor = memory.zeros(f"{name}.kv.{kind}", (words,), "u32", purpose="kv_cache")
            pool = (shape.n_blocks, config.n_kv_heads, BLOCK_TOKENS, config.head_dim)
            return replace(tensor, shape=pool, dtype=storage.name)

        size = group_size(groups)
        names = [f"group.layer{i:02}" for i in range(size)]
        if len(groups) == 1:
            names = [config.layer_name(i) for i in range(size)]
        keys = [make(name, "keys", self.format.keys) for name in names]
        values = [make(name, "values", self.format.values) for name in names]
        place_of = {layer: i for group in groups for i, layer in enumerate(group.layers)}
        self.keys = [keys[place_of[layer]] for layer in range(config.n_layers)]
        self.values = [values[place_of[layer]] for layer in range(config.n_layers)]
        self._group_of = {layer: g for g, group in enumerate(groups) for layer in group.layers}
        self.blocks: list[list[list[int]]] = [[[] for _ in range(n_slots)] for _ in groups]
        self.block_tables = [
            memory.zeros(
                f"kv.block_tables{f'.{g}' if g else ''}", (n_slots, shape.max_blocks), "u32"
            )
            for g in range(len(groups))
        ]
        self.block_parts: list[BlockPart] = []
        at = 0
        for pool in (*keys, *values):
            n_bytes = pool.n_bytes // shape.n_blocks
            self.block_parts.append(BlockPart(pool, at, n_bytes))
            at += n_bytes
        self.staging = memory.zeros("kv.staging", (at // ITEM_BYTES["u32"],), "u32")

    @property
    def step_tables(self) -> list[list[list[int]]] | None:
        """Block tables for `gpu.ops.step_buffer.pack_step` by group, or None for a quantised cache:
        its keys and values are written to a buffer first."""
        return None if self.format.packed else self.blocks

    def group_of(self, layer: int) -> int:
        """Return the group of a layer."""
        return self._group_of[layer]

    def tables_of(self, layer: int) -> Tensor:
        """Return the block tables of a layer's group."""
        return self.block_tables[self._group_of[layer]]

    def set_blocks(self, slot: int, blocks: list[int], group: int = 0) -> None:
        """Write a slot's block table of a group, for the steps submitted after it."""
        self.blocks[group][slot] = blocks
        row = slot * self.shape.max_blocks * ITEM_BYTES["u32"]
        self._memory.write(self.block_tables[group], np.array(blocks, np.uint32), at=row)

    def copy_block(self, source: int, destination: int) -> None:
        """Copy a block of every pool, for the steps submitted after it.

        The copy goes through `staging`, as WebGPU cannot copy a buffer onto itself.
        """
        self._memory.device.submissions.settle()
        staging, device = self.staging.buffer, self._memory.device.wgpu
        encoder = device.create_command_encoder(label="kv.copy_block")
        for part in self.block_parts:
            pool, at, n_bytes = part.pool.buffer, part.at, part.n_bytes
            encoder.copy_buffer_to_buffer(pool, source * n_bytes, staging, at, n_bytes)
        for part in self.block_parts:
            pool, at, n_bytes = part.pool.buffer, part.at, part.n_bytes
            encoder.copy_buffer_to_buffer(staging, at, pool, destination * n_bytes, n_bytes)
        device.queue.submit([encoder.finish()])
