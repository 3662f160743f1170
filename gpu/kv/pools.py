"""Device memory of the paged KV cache: pools of blocks for every layer, and the block tables."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gpu.config import ModelConfig
from gpu.kv.blocks import BLOCK_TOKENS, KvShape, pool_block_bytes
from gpu.kv.formats import KvStorage, kv_format
from gpu.webgpu.buffers import ITEM_BYTES, Memory, Tensor


@dataclass(frozen=True, slots=True)
class BlockPart:
    """Keys or values of one layer: `n_bytes` of every block in `pool`, which begin at `at` if all
    parts of a block are stored in a row."""

    pool: Tensor
    at: int
    n_bytes: int


class KvPools:
    """Key and value pools, and block tables.

    keys, values  one pool per layer: [n_blocks][n_kv_heads][BLOCK_TOKENS][head_dim]; for the last
                  two dimensions of a quantised cache see `gpu.kv.formats`
    block_tables  (n_slots, max_blocks) u32
    blocks        contents of the tables, by slot
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
        self._memory = memory

        def make(layer: int, kind: str, storage: KvStorage) -> Tensor:
            words = shape.n_blocks * pool_block_bytes(config, storage) // ITEM_BYTES["u32"]
            name = f"layer{layer:02}.kv.{kind}"
            tensor = memory.zeros(name, (words,), "u32", purpose="kv_cache")
            pool = (shape.n_blocks, config.n_kv_heads, BLOCK_TOKENS, config.head_dim)
            return replace(tensor, shape=pool, dtype=storage.name)

        layers = range(config.n_layers)
        self.keys = [make(layer, "keys", self.format.keys) for layer in layers]
        self.values = [make(layer, "values", self.format.values) for layer in layers]
        self.blocks: list[list[int]] = [[] for _ in range(n_slots)]
        self.block_tables = memory.zeros("kv.block_tables", (n_slots, shape.max_blocks), "u32")
        self.block_parts: list[BlockPart] = []
        at = 0
        for pool in (*self.keys, *self.values):
            n_bytes = pool.n_bytes // shape.n_blocks
            self.block_parts.append(BlockPart(pool, at, n_bytes))
            at += n_bytes
        self.staging = memory.zeros("kv.staging", (at // ITEM_BYTES["u32"],), "u32")

    @property
    def step_tables(self) -> list[list[int]] | None:
        """Block tables for `gpu.ops.step_buffer.pack_step`, or None for a quantised cache: its keys
        and values are written to a buffer first."""
        return None if self.format.packed else self.blocks

    def set_blocks(self, slot: int, blocks: list[int]) -> None:
        """Write a slot's block table, for the steps submitted after it."""
        self.blocks[slot] = blocks
        row = slot * self.shape.max_blocks * ITEM_BYTES["u32"]
        self._memory.write(self.block_tables, np.array(blocks, np.uint32), at=row)

    def copy_block(self, source: int, destination: int) -> None:
        """Copy a block of every pool, for the steps submitted after it.

        The copy goes through `staging`, as WebGPU cannot copy a buffer onto itself.
        """
        staging, device = self.staging.buffer, self._memory.device.wgpu
        encoder = device.create_command_encoder(label="kv.copy_block")
        for part in self.block_parts:
            pool, at, n_bytes = part.pool.buffer, part.at, part.n_bytes
            encoder.copy_buffer_to_buffer(pool, source * n_bytes, staging, at, n_bytes)
        for part in self.block_parts:
            pool, at, n_bytes = part.pool.buffer, part.at, part.n_bytes
            encoder.copy_buffer_to_buffer(staging, at, pool, destination * n_bytes, n_bytes)
        device.queue.submit([encoder.finish()])
