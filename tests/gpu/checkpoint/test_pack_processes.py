"""PackProcesses: the bits of `pack`, errors, processes that are killed, and their end."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from gpu.checkpoint import pack_processes
from gpu.checkpoint.pack_processes import PackProcesses, _PackProcess
from gpu.checkpoint.packing import pack, row_words
from gpu.checkpoint.weights import WeightLoader
from gpu.checks.rig import Array, Arrays
from gpu.errors import ModelError
from gpu.webgpu.buffers import Memory
from gpu.webgpu.device import Device


class Observed(PackProcesses):
    """Processes whose chunks can be counted."""

    @property
    def running(self) -> list[int]:
        return [process._process.pid for process in self._idle]

    @property
    def processes(self) -> list[_PackProcess]:
        return self._idle


def packed(processes: PackProcesses, dtype: str, rows: Array) -> Array:
    out = np.full((len(rows), row_words(dtype, rows.shape[1])), 0xDEADBEEF, np.uint32)
    processes.pack(dtype, rows, "w", out)
    return out


def random_rows(n: int, k: int) -> Array:
    return np.random.default_rng(n + k).standard_normal((n, k)).astype(np.float32)


@pytest.mark.parametrize("dtype", ["q4", "q8"])
def test_processes_give_the_bits_of_pack(dtype: str) -> None:
    processes = Observed(most=1, start_weights=0)
    for n, k in [(1, 1), (3, 31), (5, 100), (64, 2048)]:
        rows = random_rows(n, k)
        assert np.array_equal(packed(processes, dtype, rows), pack(dtype, rows))
        assert len(processes.running) == 1
    processes.close()


@pytest.mark.ci
def test_threads_share_the_processes() -> None:
    processes = Observed(most=2, start_weights=0)
    rows = [random_rows(16, 256 + i) for i in range(12)]
    got: dict[int, Array] = {}

    def work(first: int) -> None:
        for i in range(first, len(rows), 4):
            got[i] = packed(processes, "q4", rows[i])

    threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(got[i], pack("q4", each)) for i, each in enumerate(rows))
    assert 1 <= len(processes.running) <= 2
    processes.close()


@pytest.mark.ci
def test_none_is_started_for_few_weights() -> None:
    processes = Observed(most=1, start_weights=256)
    for _ in range(2):
        for expected in [0, 0, 1]:
            packed(processes, "q8", random_rows(4, 32))
            assert len(processes.running) == expected
        processes.close()
        assert not processes.running


@pytest.mark.ci
def test_what_a_format_cannot_hold_is_refused_as_by_pack() -> None:
    processes = Observed(most=1, start_weights=0)
    with pytest.raises(ModelError) as told:
        pack("q4", np.full((2, 32), 1e6, np.float32), "w")
    with pytest.raises(ModelError) as found:
        packed(processes, "q4", np.full((2, 32), 1e6, np.float32))
    assert str(found.value) == str(told.value)
    rows = random_rows(2, 32)
    assert np.array_equal(packed(processes, "q4", rows), pack("q4", rows))
    assert len(processes.running) == 1
    processes.close()


def test_the_rest_is_packed_here_when_a_process_is_killed() -> None:
    processes = Observed(most=1, start_weights=0)
    rows = random_rows(8, 64)
    packed(processes, "q4", rows)
    [process] = processes.processes
    process._process.kill()
    process._process.wait()
    for _ in range(2):
        assert np.array_equal(packed(processes, "q4", rows), pack("q4", rows))
    assert not processes.running
    processes.close()


def test_weights_are_packed_here_where_no_process_can_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pack_processes.sys, "executable", "/nowhere/python")
    processes = Observed(most=1, start_weights=0)
    rows = random_rows(8, 64)
    assert np.array_equal(packed(processes, "q4", rows), pack("q4", rows))
    assert not processes.running


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[_PackProcess]:
    """Processes that loaders start, from their first weight on."""
    monkeypatch.setattr(pack_processes, "MOST", 2)
    monkeypatch.setattr(pack_processes, "START_WEIGHTS", 0)
    processes: list[_PackProcess] = []
    start = _PackProcess.__init__

    def noted(self: _PackProcess) -> None:
        start(self)
        processes.append(self)

    monkeypatch.setattr(_PackProcess, "__init__", noted)
    return processes


def loaded(device: Device) -> Array:
    """Return the words of a matrix on the device."""
    memory = Memory(device)
    with WeightLoader(Arrays({"w": random_rows(40, 96)}), memory, "q4") as load:
        matrix = load.matrix("w", "w", 40, 96)
    return memory.read(matrix.shards[0].tensor)


def test_a_loader_ends_its_processes(
    device: Device, started: list[_PackProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = loaded(device)
    assert started
    assert all(each._process.poll() is not None for each in started)
    n_started = len(started)
    monkeypatch.setattr(pack_processes, "MOST", 0)
    assert np.array_equal(found, loaded(device))
    assert len(started) == n_started


@pytest.mark.ci
def test_a_loader_that_fails_ends_its_processes(
    device: Device, started: list[_PackProcess]
) -> None:
    bad = Arrays({"bad": np.full((8, 32), 1e6, np.float32)})
    load = WeightLoader(bad, Memory(device), "q4")
    with pytest.raises(ModelError, match="bad cannot be stored as q4"), load:
        load.matrix("bad", "bad", 8, 32)
    assert started
    assert all(each._process.poll() is not None for each in started)
