"""What a device can do at most: that all of the work is done, and how it is timed."""

from __future__ import annotations

import numpy as np
import pytest

from gpu.errors import DeviceError
from gpu.webgpu import peaks
from gpu.webgpu.device import Device
from gpu.webgpu.peaks import FMAS_PER_ROUND, ROUNDS, WORKGROUP, FmaTimer, measure_peaks
from tests.gpu.rig import POISON


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


def test_the_peaks_of_this_device_are_plausible(device: Device) -> None:
    """Between a slow phone and the fastest accelerator."""
    found = measure_peaks(device)
    assert 1e8 < found.bytes_per_s < 1e14
    assert 1e8 < found.flops_per_s < 1e16


class Work:
    """Takes `start` and then `each` for every piece, by its own clock; the first run is late."""

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


def test_so_much_is_done_that_starting_it_counts_little(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(monkeypatch, start=1e-4, each=1e-5)
    assert peaks.most_per_second(work.seconds, 1 << 20) == pytest.approx(1e5, rel=0.02)
    assert work.sizes[-1] == 1024
    assert work.now < peaks.BUDGET_S + 2 * 1024 * work.each


def test_one_late_run_does_not_end_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(monkeypatch, start=0.0, each=1e-5, late=1.0)
    assert peaks.most_per_second(work.seconds, 1 << 20) == pytest.approx(1e5)


def test_no_more_is_done_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(monkeypatch, start=0.0, each=1e-9)
    assert peaks.most_per_second(work.seconds, 48) == pytest.approx(1e9)
    assert max(work.sizes) == 32


def test_slow_work_is_timed_once_more_and_no_oftener(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(monkeypatch, start=0.0, each=1.0)
    assert peaks.most_per_second(work.seconds, 64) == pytest.approx(1.0)
    assert work.sizes == [1, 1]
