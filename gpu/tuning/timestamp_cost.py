"""Cost of a timestamp between two dispatches of a pass.

A pass of dispatches that wait for each other runs with and without timestamps between them. Where a
driver ends the work before a timestamp and starts it again, the difference is large.
"""

from __future__ import annotations

import numpy as np

from gpu.webgpu.buffers import Memory
from gpu.webgpu.calls import open_calls
from gpu.webgpu.commands import StepCommands
from gpu.webgpu.device import Device
from gpu.webgpu.kernels import Kernels
from gpu.webgpu.peaks import WORKGROUP
from gpu.webgpu.plan import Recorder
from gpu.webgpu.timestamps import FIRST_MARK, Timestamps

DISPATCHES = 65
"""Timestamps of a pass, as many as a model of 32 layers has marks."""
WORKGROUPS = 128
"""Workgroups of a dispatch: as many as a large GPU has multiprocessors."""
FMA_ROUNDS = 1
REPEATS = 9


def timestamp_us(device: Device) -> float | None:
    """Return the microseconds that a timestamp adds to a pass, at least 0: the difference of the
    shortest of several passes. None: the device takes none there, or its clock does not run."""
    if not device.has_pass_timestamps:
        return None
    timer = _PassTimer(device)
    try:
        timer.microseconds(marks=True)  # compiles
        with_marks, without = [], []
        for _ in range(REPEATS):
            with_marks.append(timer.microseconds(marks=True))
            without.append(timer.microseconds(marks=False))
    finally:
        timer.close()
    shortest = min(without)
    return max(0.0, min(with_marks) - shortest) / (DISPATCHES - 1) if shortest > 0 else None


class _PassTimer:
    """Times a pass of equal dispatches, each writing what the one before wrote."""

    def __init__(self, device: Device) -> None:
        memory = Memory(device)
        self._out = memory.zeros("timestamps.out", (WORKGROUPS * WORKGROUP,))
        factors = memory.upload("timestamps.factors", np.ones(2, np.float32), purpose="work")
        rec = Recorder(device, Kernels(device))
        for _ in range(DISPATCHES):
            rec.dispatch(
                "timestamps",
                "bench/fma_chains",
                {"factors": factors, "out": self._out},
                (WORKGROUPS, 1, 1),
                {"ROUNDS": FMA_ROUNDS, "WORKGROUP": WORKGROUP},
            )
        self._plan = rec.plan  # keeps the handles alive
        self._calls = open_calls(device)
        self._timestamps = Timestamps(device, DISPATCHES - 1)
        self._readback = self._calls.readback(self._timestamps.n_bytes, "timestamps")
        dispatches = [dispatch.in_pass for dispatch in rec.plan.dispatches]
        one_by_one = tuple((dispatch,) for dispatch in dispatches)
        n_marked = FIRST_MARK + DISPATCHES - 1
        self._commands = {
            marks: self._calls.prepare(
                StepCommands(
                    one_by_one if marks else (tuple(dispatches),),
                    (),
                    self._timestamps.timing(n_marked if marks else FIRST_MARK, 0),
                    FIRST_MARK if marks else None,
                )
            )
            for marks in (True, False)
        }

    def microseconds(self, *, marks: bool) -> float:
        """Return how long the pass takes by the device's clock."""
        commands = self._calls.encode(self._commands[marks], self._readback)
        self._calls.submit(commands, self._readback)
        self._readback.wait()
        data = self._readback.read(self._timestamps.n_bytes)
        begin, end = self._timestamps.milliseconds(data, FIRST_MARK, 0)
        return 1e3 * float(end - begin)

    def close(self) -> None:
        self._out.buffer.destroy()
