"""Peaks of a device: all of the work is done, and it is timed right."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import wgpu

from gpu.checks.rig import POISON
from gpu.errors import DeviceError
from gpu.webgpu import peaks
from gpu.webgpu.buffers import Memory
from gpu.webgpu.device import Device
from gpu.webgpu.device_policy import DISCRETE
from gpu.webgpu.peaks import (
    FMAS_PER_ROUND,
    ROUNDS,
    WORKGROUP,
    FmaTimer,
    Peaks,
    ReadTimer,
    measure_peaks,
    plausible,
)


@pytest.mark.parity
@pytest.mark.parametrize("workgroups", [1, 7, 64])
def test_every_lane_does_all_its_multiply_adds(device: Device, workgroups: int) -> None:
    timer = FmaTimer(device)
    out = timer.out
    timer.memory.write(out, np.full(out.shape, POISON, np.uint32))
    timer.seconds(workgroups)
    counted = timer.memory.read(out)
    lanes = workgroups * WORKGROUP
    np.testing.assert_array_equal(counted[:lanes], ROUNDS * FMAS_PER_ROUND)
    assert (counted[lanes:].view(np.uint32) == POISON).all()
    timer.close()


def test_a_device_that_leaves_some_out_is_an_error(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    timer = FmaTimer(device)
    monkeypatch.setattr(peaks, "ROUNDS", ROUNDS + 1)
    with pytest.raises(DeviceError, match="a lane counted 196608 multiply-adds instead of 196,800"):
        timer.seconds(1)
    timer.close()


@pytest.mark.parity
def test_a_peak_is_the_work_of_one_piece_times_pieces_a_second(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = 3.5
    monkeypatch.setattr(peaks, "most_per_second", lambda seconds, most, budget_s=None: pieces)
    monkeypatch.setattr(peaks, "CACHE_GAIN", 1.0)
    found = measure_peaks(device)
    n_bytes, binds = device.policy.probe_bytes, device.max_binding_bytes
    assert found.flops_per_s == pieces * 64 * 1024 * 16 * 12 * 2  # lanes, rounds, chains, vec4
    assert device.policy.probe_copies == device.info.software
    if device.policy.probe_copies:  # pieces of 128 MiB: the largest set is as fast as memory
        bandwidth = pieces * 2 * min(n_bytes, binds)
        assert found == Peaks(bandwidth, found.flops_per_s, 0, 128 << 20, pieces * (128 << 20))
    reads = replace(device, policy=replace(device.policy, probe_bytes=96 << 20, probe_copies=False))
    assert measure_peaks(reads) == Peaks(
        pieces * (96 << 20), found.flops_per_s, 96 << 20, 128 << 20, pieces * (128 << 20)
    )


@pytest.mark.parity
def test_a_discrete_gpu_copies_to_host_memory(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peaks, "BUDGET_S", 0.0)
    assert measure_peaks(device).bus_bytes_per_s == 0 or device.info.kind == DISCRETE
    discrete = replace(device, info=replace(device.info, kind=DISCRETE))
    assert measure_peaks(discrete).bus_bytes_per_s > 0


@pytest.mark.parity
@pytest.mark.parametrize("n_bytes", [2 << 20, 128 << 20])
def test_every_word_of_a_set_is_read_again_and_again(device: Device, n_bytes: int) -> None:
    """All together read 128 MiB; a word outside of the set would count as 0."""
    timer = ReadTimer(device, n_bytes, again=(128 << 20) // n_bytes)
    assert timer.n_bytes == n_bytes
    timer.seconds(1)
    (out,) = (dispatch.tensors["out"] for dispatch in timer.dispatches)
    counted = Memory(device).read(out)
    np.testing.assert_array_equal(counted, (128 << 20) // 4 // len(counted))
    timer.close()


def test_each_word_of_a_set_is_read_equally_often(device: Device) -> None:
    timer, memory = ReadTimer(device, 2 << 20, again=64), Memory(device)
    words, out = (timer.dispatches[0].tensors[name] for name in ("words", "out"))
    memory.write(words, (np.arange(1 << 19) == 77_777).astype(np.uint32))
    with pytest.raises(DeviceError, match="read 0 words instead of 128"):
        timer.seconds(1)
    assert memory.read(out).sum() == 64
    timer.close()


def test_the_cache_is_the_largest_set_that_is_faster_than_memory() -> None:
    rates = {2 << 20: 50.0, 4 << 20: 40.0, 8 << 20: 15.0, 16 << 20: 14.9}
    assert peaks.largest_cached(10.0, lambda n: rates.get(n, 10.0)) == (8 << 20, 15.0)
    assert peaks.largest_cached(40.0, lambda n: rates.get(n, 10.0)) == (0, 0.0)


@pytest.mark.parity
def test_every_word_is_read_once_and_timed_by_the_device(device: Device) -> None:
    """In parts where one buffer would be larger than the device binds: here 32 MiB."""
    limits = {**device.info.limits, "max-storage-buffer-binding-size": (64 << 20) - 4}
    small = replace(device, info=replace(device.info, limits=limits))
    timer = ReadTimer(small, 64 << 20)
    assert timer.n_bytes == 64 << 20
    sums = [dispatch.tensors["out"] for dispatch in timer.dispatches]
    assert len(sums) == 2
    began = time.perf_counter()
    assert 0 < timer.seconds(2) < time.perf_counter() - began
    for out in sums:
        counted = Memory(device).read(out)
        np.testing.assert_array_equal(counted, (32 << 20) // 4 // len(counted))
    timer.close()


@contextmanager
def room_for(n_bytes: int, device: Device) -> Iterator[None]:
    """Let the device have room for buffers of so many bytes together, until they are destroyed;
    fails if large ones are not at the end."""
    create, held = type(device.wgpu).create_buffer, 0

    def create_if_there_is_room(owner: Any, *, size: int, **more: Any) -> Any:
        nonlocal held
        if held + size > n_bytes:
            raise wgpu.GPUOutOfMemoryError("no room")
        held += size
        buffer = create(owner, size=size, **more)
        destroy = buffer.destroy

        def destroy_and_count() -> None:
            nonlocal held
            held -= size
            destroy()

        buffer.destroy = destroy_and_count
        return buffer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(device.wgpu), "create_buffer", create_if_there_is_room)
        yield
        assert held < 16 << 20, "small ones are left to the garbage collector"


def test_less_is_read_where_memory_is_small(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {**device.info.limits, "max-storage-buffer-binding-size": 96 << 20}
    small = replace(device, info=replace(device.info, limits=limits))
    with room_for(100 << 20, device):
        timer = ReadTimer(small, 256 << 20)
        assert timer.n_bytes == 64 << 20
        timer.close()
    monkeypatch.setattr(peaks, "LEAST_BYTES", 128 << 20)
    refused = pytest.raises(DeviceError, match="no room for 128 MiB to measure its memory with")
    with room_for(100 << 20, device), refused:
        ReadTimer(small, 256 << 20)


def test_no_rate_is_told_of_what_memory_has_no_room_for(device: Device) -> None:
    with room_for(100 << 20, device):
        assert peaks.set_bandwidth(device, 128 << 20, 0.0) == 0, "nor that of half as much"
    refused = pytest.raises(DeviceError, match="no room for two times 64 MiB to measure copies")
    with room_for(100 << 20, device), refused:
        peaks.bus_bandwidth(device)


def test_a_share_above_a_peak_is_none() -> None:
    assert (plausible(0.5), plausible(1.05), plausible(1.06)) == (0.5, 1.05, None)


@pytest.mark.parity
def test_the_peaks_of_this_device_are_those_of_work_timed_here(device: Device) -> None:
    """Within five times either way: a busy machine may give a core to one of the two only."""
    found = measure_peaks(device)
    copied = copied_per_second(device)
    # A GPU reads faster in a shader than it copies.
    assert 1 / 5 < found.bytes_per_s / copied < (5 if device.policy.probe_copies else 50)
    timer = FmaTimer(device)
    best = min(timer.seconds(64) for _ in range(12))
    timer.close()
    assert 1 / 5 < found.flops_per_s * best / (64 * WORKGROUP * ROUNDS * FMAS_PER_ROUND * 2) < 5


def copied_per_second(device: Device, n_bytes: int = 32 << 20) -> float:
    """Return bytes read and written per second by copies between two buffers, the best of a few."""
    memory, best = Memory(device), math.inf
    source, target = (memory.zeros(name, (n_bytes // 4,)).buffer for name in ("from", "to"))
    for _ in range(5):
        encoder = device.wgpu.create_command_encoder()
        encoder.copy_buffer_to_buffer(source, 0, target, 0, n_bytes)
        commands = encoder.finish()
        began = time.perf_counter()
        device.wgpu.queue.submit([commands])
        device.wgpu.queue.read_buffer(target, 0, 4)
        best = min(best, time.perf_counter() - began)
    source.destroy()
    target.destroy()
    return 2 * n_bytes / best


class Work:
    """Fake work: `start` plus `each` per piece, by its own clock; the first run is slower."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, start: float, each: float, late: float = 0.0
    ) -> None:
        self.start, self.each, self.late = start, each, late
        self.sizes: list[int] = []
        self.now = 0.0
        monkeypatch.setattr("gpu.webgpu.peaks.time.perf_counter", lambda: self.now)

    def seconds(self, n: int) -> float:
        took = self.start + n * self.each + (0 if self.sizes else self.late)
        self.sizes.append(n)
        self.now += took
        return took


def test_enough_work_is_timed_that_launch_time_counts_little(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work = Work(monkeypatch, start=1e-4, each=1e-5)
    assert peaks.most_per_second(work.seconds, 1 << 20) == pytest.approx(1e5, rel=0.02)
    assert work.sizes[-1] == 1024
    assert work.now < peaks.BUDGET_S + 2 * 1024 * work.each


def test_one_late_run_does_not_end_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(monkeypatch, start=0.0, each=1e-5, late=1.0)
    assert peaks.most_per_second(work.seconds, 1 << 20) == pytest.approx(1e5)


def test_work_never_exceeds_the_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(monkeypatch, start=0.0, each=1e-9)
    assert peaks.most_per_second(work.seconds, 48) == pytest.approx(1e9)
    assert max(work.sizes) == 32


def test_slow_work_is_timed_once_more_and_no_oftener(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(monkeypatch, start=0.0, each=1.0)
    assert peaks.most_per_second(work.seconds, 64) == pytest.approx(1.0)
    assert work.sizes == [1, 1]
