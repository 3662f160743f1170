"""GPU times of a step: a query set written by passes and between dispatches."""

from __future__ import annotations

import numpy as np
import wgpu

from gpu.step import Times
from gpu.webgpu import native
from gpu.webgpu.commands import PassTimestamps
from gpu.webgpu.device import Device

FIRST_MARK = 2
"""Queries 0 and 1 are the begin and end of the pass; a plan's marks follow."""


class Timestamps:
    """Query set for the begin and end of a pass and `n_marks` points between its dispatches.

    One serves all steps in flight: the queue resolves a step's queries before the next step writes.
    """

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

    def timing(self, n: int, at: int) -> PassTimestamps:
        """Return the commands that write a step's first `n` times to its readback at byte `at`."""
        return PassTimestamps(self._query_set, n, self._resolved, at)

    def milliseconds(self, data: bytes, n: int, at: int) -> Times:
        """Return the `n` times that a step wrote at `at`, in ms of the device's clock."""
        times: Times = np.frombuffer(data, np.uint64, n, at).astype(np.float64) * self._tick_ms
        return times
