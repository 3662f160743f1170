"""Context that the cases of a part share: the device, the time left, and the output."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from gpu.bench.machine.results import Status
from gpu.webgpu.device import Device
from gpu.webgpu.peaks import Peaks, measure_peaks

GIB = 1 << 30


class Outcome(NamedTuple):
    """Result of a case; see `gpu.bench.machine.results.Result`."""

    figures: dict[str, float]
    status: Status = "ok"
    note: str = ""


def left_out(reason: str) -> Outcome:
    return Outcome({}, "left out", reason)


Case = tuple[str, Callable[[], Outcome]]
"""Name and function of a case."""


@dataclass
class Context:
    """A device and the time that a part has on it.

    adapter   its number
    deadline  by `time.perf_counter`
    free      free bytes of its memory, None if unknown
    say       tells the parent what happens: it ends a part that says nothing for long
    """

    device: Device
    adapter: str
    deadline: float
    free: int | None = None
    say: Callable[[str], None] = field(default=lambda text: None)

    @property
    def seconds_left(self) -> float:
        return self.deadline - time.perf_counter()

    @cached_property
    def peaks(self) -> Peaks:
        """Measured bandwidth and arithmetic of the device."""
        return measure_peaks(self.device)

    @property
    def bytes_per_s(self) -> float:
        """Measured bandwidth of the memory, see `gpu.webgpu.peaks.Peaks`."""
        return self.peaks.bytes_per_s

    def seconds_for(self, n_bytes: float, flops: float) -> float:
        """Return a guess of how long work takes: at half of the bandwidth, or at a tenth of the
        arithmetic that multiply-adds in registers reach."""
        peaks = self.peaks
        return max(2 * n_bytes / peaks.bytes_per_s, 10 * flops / peaks.flops_per_s)


PartCases = Callable[[Context], Iterator[Case]]
"""Yields the cases of a part, the most important first."""


def rounded(value: float, digits: int = 3) -> float:
    """Return a number with this many significant digits."""
    return float(f"{value:.{digits}g}")
