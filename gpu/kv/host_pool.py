"""KV offload (`kv_offload`): host memory for evicted KV blocks, and the copies between it and the
pools on the device.

A block leaves the device as a copy to a readback buffer, submitted in order with the steps: what
overwrites the block is submitted later. The host reads the buffer when it is needed for another
block, or when its block is wanted back; the steps submitted meanwhile keep the device busy. A block
comes back by writes to the queue, which run before the step submitted next.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from gpu.kv.pools import KvPools
from gpu.webgpu.buffers import Memory
from gpu.webgpu.calls import open_calls
from gpu.webgpu.commands import BufferCopy, Readback, StepCommands

READBACK_BYTES, MAX_READBACKS = 16 << 20, 64
"""Most bytes and most readback buffers; there are two at least."""


class HostPool:
    """Places for `n_places` KV blocks in host memory. Used by one thread.

    A block is kept as it is on the device, in its format: keys and values of all layers.
    """

    def __init__(self, pools: KvPools, n_places: int, memory: Memory) -> None:
        self._memory = memory
        self._parts = pools.block_parts
        self._block_bytes = sum(part.n_bytes for part in self._parts)
        self._calls = open_calls(memory.device)
        n = min(n_places, MAX_READBACKS, max(2, READBACK_BYTES // self._block_bytes))
        self._free: deque[Readback] = deque(
            self._calls.readback(self._block_bytes, f"kv.store{i}") for i in range(n)
        )
        self._in_flight: deque[tuple[int, Readback]] = deque()  # places, oldest first
        self._held: dict[int, bytes] = {}
        memory.n_bytes["work"] += n * self._block_bytes

    def store_block(self, block: int, place: int) -> None:
        """Copy a device block to a place, as the steps submitted so far leave it."""
        if not self._free:
            self._read_oldest()
        readback = self._free.popleft()
        copies = tuple(
            BufferCopy(part.pool.buffer, part.n_bytes, part.at, block * part.n_bytes)
            for part in self._parts
        )
        commands = self._calls.prepare(StepCommands(((),), copies))
        self._memory.device.submissions.settle()
        self._calls.submit(self._calls.encode(commands, readback), readback)
        self._in_flight.append((place, readback))

    def load_block(self, place: int, block: int) -> None:
        """Copy what is at a place to a device block, for the steps submitted from now on."""
        while any(place == stored for stored, _ in self._in_flight):
            self._read_oldest()
        held = np.frombuffer(self._held[place], np.uint8)
        for part in self._parts:
            data = held[part.at : part.at + part.n_bytes]
            self._memory.write(part.pool, data, at=block * part.n_bytes)

    def _read_oldest(self) -> None:
        place, readback = self._in_flight.popleft()
        readback.wait()
        self._held[place] = readback.read(self._block_bytes)
        self._free.append(readback)
