"""Bytes: what a decode step must read, and how fast the device can copy."""

from __future__ import annotations

import time

from gpu.buffers import Memory
from gpu.device import Device
from gpu.wgpu_runner import WgpuRunner

COPY_BYTES = 256 << 20
LEAST_SECONDS = 0.05
"""Of one measurement: so many copies that starting and waiting for them counts little."""
REPEATS = 5


def copy_bandwidth(device: Device) -> float:
    """Bytes per second of large buffer-to-buffer copies, read and written bytes both counted; the
    best of several measurements."""
    memory = Memory(device)
    n_bytes = min(COPY_BYTES, device.max_binding_bytes) // 4 * 4
    source, target = (memory.zeros(name, (n_bytes // 4,)).buffer for name in ("source", "target"))

    def seconds(copies: int) -> float:
        encoder = device.wgpu.create_command_encoder()
        for _ in range(copies):
            encoder.copy_buffer_to_buffer(source, 0, target, 0, n_bytes)
        commands = encoder.finish()
        began = time.perf_counter()
        device.wgpu.queue.submit([commands])
        device.wgpu.queue.read_buffer(target, 0, 4)  # waits for the copies
        return time.perf_counter() - began

    seconds(1)  # the first touch of the pages
    copies = 1
    while seconds(copies) < LEAST_SECONDS:
        copies *= 2
    return 2 * n_bytes * copies / min(seconds(copies) for _ in range(REPEATS))


def weight_bytes(runner: WgpuRunner) -> int:
    """Bytes of weights a decode step must read: every matrix once; of an untied embedding one
    row."""
    model, config = runner.model, runner.config
    n_bytes = sum(matrix.n_bytes for matrix in model.matrices())
    if not config.tie_embeddings:
        n_bytes -= model.embedding.n_bytes * (config.vocab_size - 1) // config.vocab_size
    return n_bytes


def kv_bytes(runner: WgpuRunner, context: int) -> int:
    """Bytes of keys and values of `context` tokens."""
    return context * runner.limits.block_bytes // runner.limits.block_tokens
