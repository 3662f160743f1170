"""Copying a block copies all of it, in every layer, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from gpu.checks.kv_cache import pool_words
from gpu.config import ModelConfig, RopeConfig
from gpu.kv.blocks import KvShape
from gpu.kv.pools import KvPools
from gpu.webgpu.buffers import ITEM_BYTES, Memory
from gpu.webgpu.device import Device

pytestmark = pytest.mark.parity


def config_of(n_layers: int, n_kv_heads: int, head_dim: int) -> ModelConfig:
    hidden = n_kv_heads * head_dim
    return ModelConfig(
        model_type="llama", n_layers=n_layers, n_heads=n_kv_heads, n_kv_heads=n_kv_heads,
        head_dim=head_dim, hidden_size=hidden, intermediate_size=hidden, vocab_size=8, context=64,
        norm_eps=1e-5, tie_embeddings=True, attention_bias=False, mlp_bias=False,
        rope=RopeConfig(), eos_ids=(), bos_id=None, torch_dtype=None,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", ["f32", "f16", "q8", "q8q4", "rotated4"])
@pytest.mark.parametrize("shape", [(1, 1, 8), (3, 3, 80), (2, 5, 64)], ids=str)
def test_a_copied_block_is_the_same_in_every_layer(
    device: Device, dtype: str, shape: tuple[int, int, int]
) -> None:
    memory, config = Memory(device), config_of(*shape)
    pools = KvPools(config, KvShape(n_blocks=5, context=64), dtype, 2, memory)
    rng = np.random.default_rng(3)
    wanted = {}
    for pool in (*pools.keys, *pools.values):
        wanted[pool.name] = rng.integers(0, 2**32, (5, pool.n_bytes // 20), dtype=np.uint32)
        memory.write(pool, wanted[pool.name])
    for source, destination in ((4, 0), (0, 2), (1, 4)):
        pools.copy_block(source, destination)
        for values in wanted.values():
            values[destination] = values[source]
    for pool in (*pools.keys, *pools.values):
        found = pool_words(memory, pool).reshape(5, -1)
        assert np.array_equal(found, wanted[pool.name]), pool.name


def test_the_staging_buffer_has_the_size_of_one_block(device: Device) -> None:
    pools = KvPools(config_of(2, 3, 8), KvShape(9, 64), "f16", 1, Memory(device))
    assert pools.staging.n_bytes * 9 == sum(p.n_bytes for p in (*pools.keys, *pools.values))
    assert pools.staging.n_bytes == 2 * 2 * 3 * 16 * 8 * ITEM_BYTES["f16"]
