"""A block that goes to host memory and comes back is the same, bit for bit, in every format."""

from __future__ import annotations

import random

import numpy as np
import pytest

from gpu.checks.kv_cache import pool_words
from gpu.kv.blocks import KvShape, block_bytes
from gpu.kv.formats import KV_DTYPES
from gpu.kv.host_pool import HostPool
from gpu.kv.pools import KvPools
from gpu.webgpu.buffers import Memory
from gpu.webgpu.device import Device
from tests.gpu.kv.test_kv_cache import config_of

pytestmark = pytest.mark.parity
N_BLOCKS, N_PLACES = 5, 4


@pytest.mark.parametrize("n_readbacks", [2, 4])
@pytest.mark.parametrize("dtype", KV_DTYPES)
@pytest.mark.parametrize("shape", [(1, 1, 8), (3, 3, 80)], ids=str)
def test_stored_and_loaded_blocks_hold_the_same_bits_in_every_layer(
    device: Device,
    dtype: str,
    shape: tuple[int, int, int],
    n_readbacks: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Any order of stores and loads leaves what a copy on the host of all blocks would."""
    memory, config = Memory(device), config_of(*shape)
    pools = KvPools(config, KvShape(N_BLOCKS, context=64), dtype, 2, memory)
    n_bytes = block_bytes(config, dtype)
    monkeypatch.setattr("gpu.kv.host_pool.READBACK_BYTES", n_readbacks * n_bytes)
    before = memory.n_bytes["work"]
    host = HostPool(pools, N_PLACES, memory)
    assert memory.n_bytes["work"] - before == n_readbacks * n_bytes
    rng, draw = np.random.default_rng(3), random.Random(7)
    device_blocks = {}
    for pool in (*pools.keys, *pools.values):
        words = rng.integers(0, 2**32, (N_BLOCKS, pool.n_bytes // 4 // N_BLOCKS), dtype=np.uint32)
        memory.write(pool, words)
        device_blocks[pool.name] = words
    places: dict[int, dict[str, np.ndarray]] = {}
    for _ in range(30):
        block, place = draw.randrange(N_BLOCKS), draw.randrange(N_PLACES)
        if place in places and draw.random() < 0.5:
            host.load_block(place, block)
            for name, words in places[place].items():
                device_blocks[name][block] = words
        else:
            host.store_block(block, place)
            places[place] = {name: words[block].copy() for name, words in device_blocks.items()}
    for pool in (*pools.keys, *pools.values):
        found = pool_words(memory, pool).reshape(N_BLOCKS, -1)
        assert np.array_equal(found, device_blocks[pool.name]), pool.name


def test_without_places_nothing_is_allocated(device: Device) -> None:
    memory = Memory(device)
    pools = KvPools(config_of(1, 1, 8), KvShape(2, 32), "f16", 1, memory)
    before = memory.n_bytes["work"]
    HostPool(pools, 0, memory)
    assert memory.n_bytes["work"] == before
