"""GPU times of a step: a query set, written by passes and between dispatches, read like results."""

from __future__ import annotations

from typing import Any

import numpy as np
import wgpu

from gpu import native
from gpu.device import Device
from gpu.step import Times

FIRST_MARK = 2
"""Queries 0 and 1 are the begin and the end of the pass; a plan's marks follow."""


class Timestamps:
    """Room for `n_marks` times between the dispatches of a pass beside its begin and end. One is
    enough for all steps in flight: the queue resolves each step's before the next one writes."""

    def __init__(self, device: Device, n_marks: int) -> None:
        n = FIRST_MARK + n_marks
        self.query_set = device.wgpu.create_query_set(type="timestamp", count=n)
        self.pass_writes = {
            "query_set": self.query_set,
            "beginning_of_pass_write_index": 0,
            "end_of_pass_write_index": 1,
        }
        self._resolved = device.wgpu.create_buffer(
            size=8 * n,
            usage=wgpu.BufferUsage.QUERY_RESOLVE | wgpu.BufferUsage.COPY_SRC,
            label="timestamps",
        )
        self._tick_ms = native.timestamp_period_ns(device.wgpu.queue) / 1e6

    def copy(self, encoder: Any, n: int, to: Any, at: int) -> None:
        """Have the first `n` times copied to buffer `to`, `at` bytes from its start."""
        encoder.resolve_query_set(self.query_set, 0, n, self._resolved, 0)
        encoder.copy_buffer_to_buffer(self._resolved, 0, to, at, 8 * n)

    def milliseconds(self, data: bytes, n: int, at: int) -> Times:
        """The `n` times that `copy` left at `at`, in ms of the device's own clock."""
        times: Times = np.frombuffer(data, np.uint64, n, at).astype(np.float64) * self._tick_ms
        return times
