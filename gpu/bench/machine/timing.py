"""Timing of plans of single ops, by the host's clock: not every driver has one of its own."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpu.ops import Batch
from gpu.ops.step_buffer import STEP_BYTES, pack_step
from gpu.step import Row, Step
from gpu.webgpu.buffers import Memory
from gpu.webgpu.calls import open_calls
from gpu.webgpu.commands import BufferCopy, StepCommands
from gpu.webgpu.device import Device
from gpu.webgpu.kernels import Kernels
from gpu.webgpu.plan import Plan, Recorder

MEASURED_S = 0.1
"""Seconds for which a plan is measured."""
PASS_S = 0.02
"""Shortest measurement of a pass, so that submission and waiting count little."""
MOST_REPEATS = 256
LONG_S = 1.0
"""A pass that takes longer is measured once."""


class PlanTimer:
    """Records and times plans on one device."""

    def __init__(self, device: Device) -> None:
        self.memory = Memory(device)
        self._device = device
        self._kernels, self._calls = Kernels(device), open_calls(device)
        self._step = self.memory.zeros("timing.step", (STEP_BYTES // 4,), "u32", uniform=True)
        self._done = self._calls.readback(4, "timing")
        self._plan: Plan | None = None  # keeps the handles alive

    def batch(self, rows: Sequence[Row]) -> Batch:
        """Write a step of these rows and return its batch."""
        data = bytearray(STEP_BYTES)
        pack_step(Step(tuple(rows)), data, [range(1 << 16)])
        self.memory.write(self._step, np.frombuffer(data, np.uint8))
        return Batch(self._step, len(rows), 1)

    def seconds(self, record: Callable[[Recorder], None]) -> float:
        """Return the median of the seconds of what `record` records, after a pass that compiles."""
        rec = Recorder(self._device, self._kernels)
        record(rec)
        self._plan = rec.plan
        self._run(self._prepared(1))
        took, repeats = self._run(self._prepared(1)), 1
        if took > LONG_S:
            return took
        while took * repeats < PASS_S and repeats < MOST_REPEATS:
            repeats *= 2
        times: list[float] = []
        prepared = self._prepared(repeats)
        deadline = time.perf_counter() + MEASURED_S
        while len(times) < 3 or time.perf_counter() < deadline:
            times.append(self._run(prepared))
        return statistics.median(times) / repeats

    def _prepared(self, repeats: int) -> Any:
        assert self._plan is not None
        (segment,) = self._plan.segments()
        copies = (BufferCopy(self._step.buffer, 4, 0),)
        return self._calls.prepare(StepCommands((segment * repeats,), copies))

    def _run(self, prepared: Any) -> float:
        commands = self._calls.encode(prepared, self._done)
        began = time.perf_counter()
        self._calls.submit(commands, self._done)
        self._done.wait()
        seconds = time.perf_counter() - began
        self._done.read(4)
        return seconds
