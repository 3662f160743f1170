"""GPU time of each dispatch of a plan.

If the device takes timestamps inside a pass, the plan runs as usual with one after every dispatch.
Otherwise every dispatch is a pass of its own, submitted and waited for alone: these times do not
overlap, and their sum exceeds the time of the whole step.
"""

from __future__ import annotations

import itertools

import numpy as np

from gpu.step import Times
from gpu.webgpu.commands import Calls, StepCommands
from gpu.webgpu.device import Device
from gpu.webgpu.plan import Plan
from gpu.webgpu.timestamps import FIRST_MARK, Timestamps

MAX_QUERIES = 4096
"""Most timestamps of one query set on any device (WebGPU's limit)."""


class DispatchTimer:
    """Times one plan; its step must have been written. Used while no steps are in flight."""

    def __init__(self, device: Device, calls: Calls, plan: Plan) -> None:
        dispatches = tuple((dispatch.in_pass,) for dispatch in plan.dispatches)
        inside = device.has_pass_timestamps and len(dispatches) < MAX_QUERIES
        n_marks = len(dispatches) - 1 if inside else 0
        self._timestamps = Timestamps(device, n_marks)
        self._n_times = FIRST_MARK + n_marks
        self._calls = calls
        self._readback = calls.readback(self._timestamps.n_bytes, "dispatch times")
        timing = self._timestamps.timing(self._n_times, 0)
        passes = [dispatches] if inside else [(dispatch,) for dispatch in dispatches]
        first_mark = FIRST_MARK if n_marks else None
        self._passes = [
            calls.prepare(StepCommands(segments, (), timing, first_mark)) for segments in passes
        ]

    def run(self) -> Times:
        """Return the milliseconds of one replay, (n_dispatches,)."""
        return np.concatenate([self._run(prepared) for prepared in self._passes])

    def _run(self, prepared: object) -> Times:
        """Return the milliseconds of the dispatches of one pass."""
        self._calls.submit(self._calls.encode(prepared, self._readback), self._readback)
        self._readback.wait()
        data = self._readback.read(self._timestamps.n_bytes)
        begin, end, *marks = self._timestamps.milliseconds(data, self._n_times, 0).tolist()
        return np.array([b - a for a, b in itertools.pairwise([begin, *marks, end])])
