"""Measured peaks of a device: bytes read and operations done per second.

They are the two lines of a roofline (Williams, Waterman and Patterson 2009): a step that reads B
bytes and computes F operations takes at least max(B / bytes_per_s, F / flops_per_s). Both are for
plain WebGPU: a shader that reads more than caches hold, and float32 multiply-adds in registers.
Units that only a vendor's own interface reaches (tensor cores) are not included. Copies between
buffers say little of a GPU: on an H100 they reach 28 % of what shaders read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import wgpu

from gpu.errors import DeviceError
from gpu.webgpu.buffers import Memory, Tensor
from gpu.webgpu.calls import open_calls
from gpu.webgpu.commands import BufferCopy, StepCommands
from gpu.webgpu.device import Device
from gpu.webgpu.kernels import Kernels
from gpu.webgpu.plan import Dispatch, Recorder
from gpu.webgpu.timestamps import FIRST_MARK, Timestamps

BUDGET_S = 0.15
"""Seconds for each of the two, without compilation and the first touch of the memory."""
LEAST_S = 0.01
"""Shortest measurement, so that submission and waiting count little."""

MOST_COPIES = MOST_READS = 1024

READ_WORKGROUP, READERS = 256, 1 << 18
"""Lanes of a workgroup that reads, and of all of them: they have 32 MiB of loads under way."""
ROUND_BYTES = 8 * 16 * READERS
"""Bytes of a round of shaders/bench/read_words.wgsl."""
LEAST_BYTES = 64 << 20
FILL_BYTES = 4 << 20

ROUNDS = 1024
FMAS_PER_ROUND = 16 * 12
"""Multiply-adds of one lane per round in shaders/bench/fma_chains.wgsl."""
WORKGROUP = 64
MOST_WORKGROUPS = 1 << 15


@dataclass(frozen=True, slots=True)
class Peaks:
    """bytes_per_s  of a shader that reads `read_bytes` of memory; if that is 0, of large copies,
                 reads and writes both counted
    flops_per_s  float32, two for a multiply-add"""

    bytes_per_s: float
    flops_per_s: float
    read_bytes: int = 0


MOST_SHARE = 1.05
"""A larger share of a peak is no speed: the peak was measured wrong, or a cache held the data."""
PEAK_FAULT = "a fault of the measurement, or a cache"
"""What is said instead of such a share."""


def how_measured(read_bytes: int) -> str:
    """Return what reaches `Peaks.bytes_per_s`."""
    return f"reading {read_bytes >> 20:,} MiB" if read_bytes else "a copy"


def plausible(share: float) -> float | None:
    """Return a share of a peak; None for one that cannot be."""
    return share if share <= MOST_SHARE else None


def measure_peaks(device: Device) -> Peaks:
    """Measure both peaks, in up to half a second; nothing else should run on the device. Raises
    DeviceError if the device computes wrong results."""
    flops = fma_rate(device)  # first, so that the clocks are up when memory is measured
    if device.policy.probe_copies:
        return Peaks(copy_bandwidth(device), flops)
    bandwidth, read_bytes = read_bandwidth(device)
    return Peaks(bandwidth, flops, read_bytes)


def copy_bandwidth(device: Device) -> float:
    """Return bytes per second of large copies, reads and writes both counted."""
    memory = Memory(device)
    n_bytes = min(device.policy.probe_bytes, device.max_binding_bytes) // 4 * 4
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


def read_bandwidth(device: Device) -> tuple[float, int]:
    """Return bytes per second of a shader that only reads, and how many bytes it read: those of the
    device's policy, or as many as its memory has room for. Raises DeviceError if it leaves some
    out."""
    timer = ReadTimer(device, device.policy.probe_bytes)
    try:
        timer.seconds(1)  # compiles
        return timer.n_bytes * most_per_second(timer.seconds, MOST_READS), timer.n_bytes
    finally:
        timer.close()


class ReadTimer:
    """Timer of shaders/bench/read_words.wgsl over about `n_bytes` of memory; `n_bytes` is how much
    it is. By the device's clock, if it has one that runs."""

    def __init__(self, device: Device, n_bytes: int) -> None:
        self._device, self._memory = device, Memory(device)
        self._parts = self._allocate(n_bytes)
        self.n_bytes = sum(part.n_bytes for part in self._parts)
        self._fill()
        rec = Recorder(device, Kernels(device))
        for i, part in enumerate(self._parts):
            rec.dispatch(
                "peaks.read",
                "bench/read_words",
                {"words": part, "out": self._memory.zeros(f"peaks.sums{i}", (READERS,), "u32")},
                (READERS // READ_WORKGROUP, 1, 1),
                {"ROUNDS": part.n_bytes // ROUND_BYTES, "WORKGROUP": READ_WORKGROUP},
            )
        self._plan = rec.plan  # keeps the handles alive
        self._calls = open_calls(device)
        self._timestamps = Timestamps(device, 0) if device.has_timestamps else None
        self._done = self._calls.readback(4 * len(self._parts) + 8 + 8 * FIRST_MARK, "peaks")

    def seconds(self, times: int) -> float:
        """Return how long it takes to read everything `times` times."""
        n_sums = len(self._parts)
        sums = [dispatch.tensors["out"] for dispatch in self.dispatches]
        at = -(-4 * n_sums // 8) * 8
        clock = self._timestamps
        commands = StepCommands(
            (tuple(dispatch.in_pass for dispatch in self.dispatches) * times,),
            tuple(BufferCopy(out.buffer, 4, 4 * i) for i, out in enumerate(sums)),
            clock.timing(FIRST_MARK, at) if clock is not None else None,
        )
        encoded = self._calls.encode(self._calls.prepare(commands), self._done)
        began = time.perf_counter()
        self._calls.submit(encoded, self._done)
        self._done.wait()
        took = time.perf_counter() - began
        data = self._done.read(at + 8 * FIRST_MARK)
        self._check(np.frombuffer(data, np.uint32, n_sums))
        if clock is not None:
            begin, end = clock.milliseconds(data, FIRST_MARK, at)
            took = float(end - begin) / 1e3 or took
        return took

    @property
    def dispatches(self) -> Sequence[Dispatch]:
        return self._plan.dispatches

    def close(self) -> None:
        for part in self._parts:
            part.buffer.destroy()

    def _allocate(self, n_bytes: int) -> list[Tensor]:
        """Return buffers of `n_bytes` together, of half as many if there is no room."""
        parts: list[Tensor] = []
        most = self._device.max_binding_bytes // ROUND_BYTES * ROUND_BYTES
        try:
            for first in range(0, n_bytes, most):
                n_words = min(most, n_bytes - first) // 4
                parts.append(self._memory.zeros(f"peaks.part{first}", (n_words,), "u32"))
        except wgpu.GPUError as error:
            for part in parts:
                part.buffer.destroy()
            if n_bytes <= LEAST_BYTES:
                raise DeviceError(
                    f"{self._device.info.name}: there is no room for {LEAST_BYTES >> 20} MiB to "
                    "measure its memory with"
                ) from error
            return self._allocate(n_bytes // 2)
        return parts

    def _fill(self) -> None:
        """Fill the parts with ones: sums then tell how many were read."""
        ones = self._memory.upload("peaks.ones", np.ones(FILL_BYTES // 4, np.uint32))
        encoder = self._device.wgpu.create_command_encoder()
        for part in self._parts:
            for at in range(0, part.n_bytes, FILL_BYTES):
                encoder.copy_buffer_to_buffer(ones.buffer, 0, part.buffer, at, FILL_BYTES)
        self._device.wgpu.queue.submit([encoder.finish()])

    def _check(self, sums: npt.NDArray[np.uint32]) -> None:
        for part, counted in zip(self._parts, sums.tolist(), strict=True):
            if counted != part.n_bytes // 4 // READERS:
                raise DeviceError(
                    f"{self._device.info.name}: an invocation read {counted:,} words instead of "
                    f"{part.n_bytes // 4 // READERS:,}; the driver computes wrong results: update "
                    "it"
                )


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
