"""The paged KV cache's device memory: pools of blocks for every layer, and the block tables."""

from __future__ import annotations

import numpy as np

from gpu.config import ModelConfig
from gpu.kv.blocks import BLOCK_TOKENS, KvShape
from gpu.webgpu.buffers import ITEM_BYTES, Memory, Tensor


class KvPools:
    """Keys, values and tables.

    keys, values  one pool for each layer: [n_blocks][n_kv_heads][BLOCK_TOKENS][head_dim]
    tables        (n_slots, max_blocks) u32
    blocks        what the tables hold, by slot
    staging       one block of every pool, on its way to another block
    """

    def __init__(
        self, config: ModelConfig, shape: KvShape, dtype: str, n_slots: int, memory: Memory
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self.n_slots = n_slots
        self._memory = memory
        pool = (shape.n_blocks, config.n_kv_heads, BLOCK_TOKENS, config.head_dim)

        def make(layer: int, kind: str) -> Tensor:
            return memory.zeros(f"layer{layer:02}.kv.{kind}", pool, dtype, purpose="kv_cache")

        self.keys = [make(layer, "keys") for layer in range(config.n_layers)]
        self.values = [make(layer, "values") for layer in range(config.n_layers)]
        self.blocks: list[list[int]] = [[] for _ in range(n_slots)]
        self.tables = memory.zeros("kv.tables", (n_slots, shape.max_blocks), "u32")
        self.staging = memory.zeros("kv.staging", (2 * config.n_layers, *pool[1:]), dtype)

    def set_blocks(self, slot: int, blocks: list[int]) -> None:
        """Write a slot's block table; takes effect for the steps submitted after it."""
        self.blocks[slot] = blocks
        row = slot * self.shape.max_blocks * ITEM_BYTES["u32"]
        self._memory.write(self.tables, np.array(blocks, np.uint32), at=row)

    def copy_block(self, source: int, destination: int) -> None:
        """Copy a block of every pool, for the steps submitted after it. By way of `staging`, as
        WebGPU copies no buffer onto itself."""
        pools = [tensor.buffer for tensor in (*self.keys, *self.values)]
        n_bytes = self.staging.n_bytes // len(pools)
        staging, device = self.staging.buffer, self._memory.device.wgpu
        encoder = device.create_command_encoder(label="kv.copy_block")
        for i, pool in enumerate(pools):
            encoder.copy_buffer_to_buffer(pool, source * n_bytes, staging, i * n_bytes, n_bytes)
        for i, pool in enumerate(pools):
            at = destination * n_bytes
            encoder.copy_buffer_to_buffer(staging, i * n_bytes, pool, at, n_bytes)
        device.queue.submit([encoder.finish()])
