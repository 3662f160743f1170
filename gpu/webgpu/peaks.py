"""Measured peaks of a device: bytes moved at each level of its memory, and operations, per second.

They are the two lines of a roofline (Williams, Waterman and Patterson 2009): a step that reads B
bytes and computes F operations takes at least max(B / bytes_per_s, F / flops_per_s). Both are for
plain WebGPU: a shader that reads more than caches hold, and float32 multiply-adds in registers.
Units that only a vendor's own interface reaches (tensor cores) are not included. Copies between
buffers say little of a GPU: on an H100 they reach 28 % of what shaders read.

The rate of the cache that all processors share is that of the same reads, or copies, inside a set
of few MiB. WebGPU tells no cache's size, so sets of several sizes are tried.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import wgpu

from gpu.errors import DeviceError
from gpu.webgpu.buffers import Memory, Tensor
from gpu.webgpu.calls import open_calls
from gpu.webgpu.commands import BufferCopy, StepCommands
from gpu.webgpu.device import Device
from gpu.webgpu.device_policy import DISCRETE
from gpu.webgpu.kernels import Kernels
from gpu.webgpu.plan import Dispatch, Recorder
from gpu.webgpu.timestamps import FIRST_MARK, Timestamps

BUDGET_S = 0.15
"""Seconds for memory, arithmetic and the bus each, and for all sets of the cache together, without
compilation and the first touch of the memory."""
LEAST_S = 0.01
"""Shortest measurement, so that submission and waiting count little."""

MOST_COPIES = MOST_READS = 1024

READ_WORKGROUP, READERS = 256, 1 << 18
"""Lanes of a workgroup that reads, and of all of them: they have 32 MiB of loads under way."""
ROUND_BYTES = 8 * 16 * READERS
"""Bytes of a round of shaders/bench/read_words.wgsl."""
LEAST_BYTES = 64 << 20
FILL_BYTES = 4 << 20

SETS = tuple(1 << n for n in range(21, 28))
"""Bytes of the sets that a cache may hold: 2 to 128 MiB."""
SET_STRIDE = READERS + 37 * READ_WORKGROUP
"""Vec4s between two reads of an invocation inside a set: no multiple of the set's size, so that the
next read is of a part that other processors read last."""
CACHE_GAIN = 1.5
"""Least rate of a set that a cache is said to hold, in rates of the memory."""
BUS_BYTES = 64 << 20

ROUNDS = 1024
FMAS_PER_ROUND = 16 * 12
"""Multiply-adds of one lane per round in shaders/bench/fma_chains.wgsl."""
WORKGROUP = 64
MOST_WORKGROUPS = 1 << 15


@dataclass(frozen=True, slots=True)
class Peaks:
    """bytes_per_s  of a shader that reads `read_bytes` of memory; if that is 0, of large copies,
                 reads and writes both counted
    flops_per_s  float32, two for a multiply-add
    cache_bytes  the largest set that was read, or copied, at least `CACHE_GAIN` times as fast as
                 memory; 0: none was
    cache_bytes_per_s  its rate
    bus_bytes_per_s    of copies to host memory; 0: the device computes in host memory"""

    bytes_per_s: float
    flops_per_s: float
    read_bytes: int = 0
    cache_bytes: int = 0
    cache_bytes_per_s: float = 0.0
    bus_bytes_per_s: float = 0.0


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
    """Measure all peaks, in about a second; nothing else should run on the device. Raises
    DeviceError if the device computes wrong results."""
    flops = fma_rate(device)  # first, so that the clocks are up when memory is measured
    if device.policy.probe_copies:
        bandwidth, read_bytes = copy_bandwidth(device, 2 * device.policy.probe_bytes), 0
        set_rate = copy_bandwidth
    else:
        bandwidth, read_bytes = read_bandwidth(device)
        set_rate = set_bandwidth
    cache_bytes, cache_rate = largest_cached(
        bandwidth, lambda n_bytes: set_rate(device, n_bytes, BUDGET_S / len(SETS))
    )
    bus = bus_bandwidth(device) if device.info.kind == DISCRETE else 0.0
    return Peaks(bandwidth, flops, read_bytes, cache_bytes, cache_rate, bus)


def largest_cached(bandwidth: float, rate: Callable[[int], float]) -> tuple[int, float]:
    """Return bytes and `rate` of the largest of `SETS` that is faster than a memory of this
    bandwidth by `CACHE_GAIN`; zeros if none is."""
    for n_bytes in reversed(SETS):
        if (found := rate(n_bytes)) >= CACHE_GAIN * bandwidth:
            return n_bytes, found
    return 0, 0.0


def copy_bandwidth(device: Device, n_bytes: int, budget_s: float | None = None) -> float:
    """Return bytes per second of copies from one half of `n_bytes` to the other, reads and writes
    both counted."""
    half = min(n_bytes // 2, device.max_binding_bytes) // 4 * 4
    return 2 * _copy_rate(device, half, wgpu.BufferUsage.COPY_DST, budget_s)


def bus_bandwidth(device: Device) -> float:
    """Return bytes per second of copies to a buffer that the host reads, which lies in host memory.
    One that the host writes may lie in the device's own memory."""
    return _copy_rate(device, BUS_BYTES, wgpu.BufferUsage.COPY_DST | wgpu.BufferUsage.MAP_READ)


def _copy_rate(
    device: Device, n_bytes: int, usage: wgpu.BufferUsage, budget_s: float | None = None
) -> float:
    """Return bytes per second that copies from a buffer of the device to one of `usage` move.
    Raises DeviceError if there is no room for them."""
    uses = {"peaks.source": wgpu.BufferUsage.COPY_SRC, "peaks.target": usage}
    with ExitStack() as stack:
        buffers = []
        for label, use in uses.items():
            try:
                buffer = device.wgpu.create_buffer(label=label, size=n_bytes, usage=use)
            except wgpu.GPUError as error:
                raise DeviceError(
                    f"{device.info.name}: there is no room for two times {n_bytes >> 20} MiB to "
                    "measure copies with"
                ) from error
            stack.callback(buffer.destroy)
            buffers.append(buffer)
        source, target = buffers

        def seconds(copies: int) -> float:
            encoder = device.wgpu.create_command_encoder()
            for _ in range(copies):
                encoder.copy_buffer_to_buffer(source, 0, target, 0, n_bytes)
            commands = encoder.finish()
            began = time.perf_counter()
            device.wgpu.queue.submit([commands])
            device.wgpu.queue.read_buffer(source, 0, 4)  # waits for the copies
            return time.perf_counter() - began

        seconds(1)  # the first touch of the pages
        return n_bytes * most_per_second(seconds, MOST_COPIES, budget_s)


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


def set_bandwidth(device: Device, n_bytes: int, budget_s: float | None = None) -> float:
    """Return bytes per second of a shader that reads the same `n_bytes`, a power of two, again and
    again; 0 if the memory has no room for them. Raises DeviceError if it leaves some out."""
    timer = ReadTimer(device, n_bytes, again=max(SETS) // n_bytes)
    if timer.n_bytes < n_bytes:
        timer.close()
        return 0.0  # no room for such a set
    try:
        timer.seconds(1)  # compiles
        return max(SETS) * most_per_second(timer.seconds, MOST_READS, budget_s)
    finally:
        timer.close()


class ReadTimer:
    """Timer of shaders/bench/read_words.wgsl over about `n_bytes` of memory; `n_bytes` is how much
    it is. By the device's clock, if it has one that runs.

    With `again` the memory is one set of a power of two, read as many times by each dispatch."""

    def __init__(self, device: Device, n_bytes: int, again: int = 0) -> None:
        self._device, self._memory, self._passes = device, Memory(device), again or 1
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
                {
                    "ROUNDS": self._passes * part.n_bytes // ROUND_BYTES,
                    "STRIDE": SET_STRIDE if again else READERS,
                    "MASK": part.n_bytes // 16 - 1 if again else 0xFFFF_FFFF,
                    "WORKGROUP": READ_WORKGROUP,
                },
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
        except DeviceError as error:
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
                n_bytes = min(FILL_BYTES, part.n_bytes - at)
                encoder.copy_buffer_to_buffer(ones.buffer, 0, part.buffer, at, n_bytes)
        self._device.wgpu.queue.submit([encoder.finish()])

    def _check(self, sums: npt.NDArray[np.uint32]) -> None:
        for part, counted in zip(self._parts, sums.tolist(), strict=True):
            expected = self._passes * part.n_bytes // 4 // READERS
            if counted != expected:
                raise DeviceError(
                    f"{self._device.info.name}: an invocation read {counted:,} words instead of "
                    f"{expected:,}; the driver computes wrong results: update it"
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


def most_per_second(
    seconds: Callable[[int], float], most: int, budget_s: float | None = None
) -> float:
    """Return the best n / seconds(n) within the budget; n doubles until it takes long enough or
    reaches `most`."""
    deadline = time.perf_counter() + (BUDGET_S if budget_s is None else budget_s)
    n, took = 1, seconds(1)
    while (took := min(took, seconds(n))) < LEAST_S and 2 * n <= most:
        n *= 2
        took = seconds(n)
    while time.perf_counter() < deadline:
        took = min(took, seconds(n))
    return n / took
