"""GPU times of a step: a query set, written by passes and between dispatches, read like results."""

from __future__ import annotations

import numpy as np
import wgpu

from gpu.step import Times
from gpu.webgpu import native
from gpu.webgpu.commands import Timing
from gpu.webgpu.device import Device

FIRST_MARK = 2
"""Queries 0 and 1 are the begin and the end of the pass; a plan's marks follow."""


class Timestamps:
    """Room for `n_marks` times between the dispatches of a pass beside its begin and end. One is
    enough for all steps in flight: the queue resolves each step's before the next one writes."""

    def __init__(self, device: Device, n_marks: int) -> None:
        n = FIRST_MARK + n_marks
        self.n_bytes = 8 * n
        self._query_set = device.wgpu.create_query_set(type="timestamp", count=n)
        self._resolved = device.wgpu.create_buffer(
            size=self.n_bytes,
            usage=wgpu.BufferUsage.QUERY_RESOLVE | wgpu.BufferUsage.COPY_SRC,
            label="timestamps",
        )
        self._tick_ms = native.timestamp_period_ns(device.wgpu) / 1e6

    def timing(self, n: int, at: int) -> Timing:
        """Have a step leave its first `n` times in its readback, `at` bytes from the start."""
        return Timing(self._query_set, n, self._resolved, at)

    def milliseconds(self, data: bytes, n: int, at: int) -> Times:
        """The `n` times that a step left at `at`, in ms of the device's own clock."""
        times: Times = np.frombuffer(data, np.uint64, n, at).astype(np.float64) * self._tick_ms
        return times
