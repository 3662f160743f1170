"""Measured peaks of a device: bytes moved and operations done per second.

They are the two lines of a roofline (Williams, Waterman and Patterson 2009): a step that reads B
bytes and computes F operations takes at least max(B / bytes_per_s, F / flops_per_s). Both are for
plain WebGPU: copies between buffers, and float32 multiply-adds in registers. Units that only a
vendor's own interface reaches (tensor cores) are not included.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gpu.errors import DeviceError
from gpu.webgpu.buffers import Memory
from gpu.webgpu.calls import open_calls
from gpu.webgpu.commands import BufferCopy, StepCommands
from gpu.webgpu.device import Device
from gpu.webgpu.kernels import Kernels
from gpu.webgpu.plan import Recorder

BUDGET_S = 0.15
"""Seconds for each of the two, without compilation and the first touch of the memory."""
LEAST_S = 0.01
"""Shortest measurement, so that submission and waiting count little."""

MOST_COPIES = 1024

ROUNDS = 1024
FMAS_PER_ROUND = 16 * 12
"""Multiply-adds of one lane per round in shaders/bench/fma_chains.wgsl."""
WORKGROUP = 64
MOST_WORKGROUPS = 1 << 15


@dataclass(frozen=True, slots=True)
class Peaks:
    """bytes_per_s: large copies, reads and writes both counted. flops_per_s: float32, two for a
    multiply-add."""

    bytes_per_s: float
    flops_per_s: float


def measure_peaks(device: Device) -> Peaks:
    """Measure both peaks, in up to half a second; nothing else should run on the device. Raises
    DeviceError if the device computes wrong results."""
    return Peaks(copy_bandwidth(device), fma_rate(device))


def copy_bandwidth(device: Device) -> float:
    """Return bytes per second; see `Peaks`."""
    memory = Memory(device)
    n_bytes = min(device.policy.copy_bytes, device.max_binding_bytes) // 4 * 4
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

    try:
        seconds(1)  # the first touch of the pages
        return 2 * n_bytes * most_per_second(seconds, MOST_COPIES)
    finally:
        source.destroy()
        target.destroy()


def fma_rate(device: Device) -> float:
    """Return operations per second; see `Peaks`."""
    timer = FmaTimer(device)
    try:
        timer.seconds(1)  # compiles
        workgroups = most_per_second(timer.seconds, MOST_WORKGROUPS)
    finally:
        timer.close()
    return workgroups * WORKGROUP * ROUNDS * FMAS_PER_ROUND * 2


class FmaTimer:
    """Timer of shaders/bench/fma_chains.wgsl on one device; `out` holds a sum per lane."""

    def __init__(self, device: Device) -> None:
        self.memory = Memory(device)
        self.out = self.memory.zeros("peaks.out", (MOST_WORKGROUPS * WORKGROUP,))
        factors = self.memory.upload("peaks.factors", np.ones(2, np.float32), purpose="work")
        rec = Recorder(device, Kernels(device))
        rec.dispatch(
            "peaks.fma",
            "bench/fma_chains",
            {"factors": factors, "out": self.out},
            (1, 1, 1),
            {"ROUNDS": ROUNDS, "WORKGROUP": WORKGROUP},
        )
        self._plan = rec.plan  # keeps the handles alive
        self._calls = open_calls(device)
        self._done = self._calls.readback(4, "peaks")

    def seconds(self, workgroups: int) -> float:
        """Return how long `workgroups` workgroups take."""
        pipeline, bind_group, *_ = self._plan.dispatches[0].in_pass
        dispatch = (pipeline, bind_group, workgroups, 1, 1)
        copies = (BufferCopy(self.out.buffer, 4, 0),)
        prepared = self._calls.prepare(StepCommands(((dispatch,),), copies))
        commands = self._calls.encode(prepared, self._done)
        began = time.perf_counter()
        self._calls.submit(commands, self._done)
        self._done.wait()
        took = time.perf_counter() - began
        counted = np.frombuffer(self._done.read(4), np.float32)[0]
        if counted != ROUNDS * FMAS_PER_ROUND:
            raise DeviceError(
                f"{self.memory.device.info.name}: a lane counted {counted:g} multiply-adds instead "
                f"of {ROUNDS * FMAS_PER_ROUND:,}; the driver computes wrong results: update it"
            )
        return took

    def close(self) -> None:
        self.out.buffer.destroy()


def most_per_second(seconds: Callable[[int], float], most: int) -> float:
    """Return the best n / seconds(n) within the budget; n doubles until it takes long enough or
    reaches `most`."""
    deadline = time.perf_counter() + BUDGET_S
    n, took = 1, seconds(1)
    while (took := min(took, seconds(n))) < LEAST_S and 2 * n <= most:
        n *= 2
        took = seconds(n)
    while time.perf_counter() < deadline:
        took = min(took, seconds(n))
    return n / took
