"""Steps on their way through the device: encoded, submitted, read behind.

Submitting writes one uniform buffer, replays a recorded plan into one compute pass, copies the
results to a readback buffer and submits once. Collecting waits for that submission alone, so later
steps keep the GPU busy meanwhile. What a step needs is made once: a ring of lanes (a readback
buffer and what is known of the step in it), and each plan's commands.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu.kv.pools import KvPools
from gpu.ops.step_buffer import STEP_BYTES, pack_step
from gpu.plans.book import PlanKey, RecordedPlan, StepTensors
from gpu.runners.dispatch_timer import DispatchTimer
from gpu.step import Step, Times
from gpu.webgpu.buffers import Memory
from gpu.webgpu.calls import open_calls
from gpu.webgpu.commands import Copy, PassDispatch, StepCommands
from gpu.webgpu.timestamps import FIRST_MARK, Timestamps

NOTHING = Step(())


class Lane:
    """A readback buffer and the step whose results it gets."""

    __slots__ = ("encode_ms", "finish_ms", "n_queries", "readback", "recorded", "step", "submit_ms")

    recorded: RecordedPlan

    def __init__(self, readback: Any) -> None:
        self.readback = readback
        self.step = NOTHING
        self.n_queries = 0
        self.encode_ms = 0.0
        self.finish_ms = 0.0
        self.submit_ms = 0.0


@dataclass(frozen=True, slots=True)
class Collected:
    """What came back of a step: its lane (valid until the next submission), the bytes of its
    results, its GPU times in ms by the device's clock (begin, end, marks), and how long the host
    waited and read."""

    lane: Lane
    data: bytes
    times: Times | None
    wait_ms: float
    read_ms: float


class StepQueue:
    """Up to `depth` steps in flight on one device. Used by one thread."""

    def __init__(
        self,
        memory: Memory,
        tensors: StepTensors,
        pools: KvPools,
        depth: int,
        result_bytes: int,
        n_marks: int,
    ) -> None:
        self._device = device = memory.device
        self._tensors = tensors
        self._blocks = pools.step_tables
        self._calls = open_calls(device)
        self._step_bytes = bytearray(STEP_BYTES)
        self._write = self._calls.writer(tensors.step.buffer, self._step_bytes)
        self._timestamps = Timestamps(device, n_marks) if device.has_timestamps else None
        self._prepared: dict[tuple[PlanKey, int], Any] = {}
        self._free = deque(
            Lane(self._calls.readback(result_bytes, f"readback{i}")) for i in range(depth)
        )
        self._in_flight: deque[Lane] = deque()
        n_times = self._timestamps.n_bytes if self._timestamps else 0
        memory.n_bytes["work"] += depth * result_bytes + n_times

    def __len__(self) -> int:
        return len(self._in_flight)

    def submit(self, recorded: RecordedPlan, step: Step, *, marks: bool = True) -> None:
        """`marks` False: without the times inside the pass that the plan may have marked. Raises
        IndexError when `depth` steps are in flight already."""
        began = time.perf_counter()
        lane = self._free.popleft()
        self._write(pack_step(step, self._step_bytes, self._blocks))
        lane.n_queries = recorded.n_queries if marks else min(recorded.n_queries, FIRST_MARK)
        encoder = self._calls.record(self._prepare(recorded, lane.n_queries), lane.readback)
        walked = time.perf_counter()
        commands = self._calls.finish(encoder)
        encoded = time.perf_counter()
        self._calls.submit(commands, lane.readback)
        lane.recorded, lane.step = recorded, step
        lane.encode_ms = (encoded - began) * 1e3
        lane.finish_ms = (encoded - walked) * 1e3
        lane.submit_ms = (time.perf_counter() - encoded) * 1e3
        self._in_flight.append(lane)

    def collect(self) -> Collected:
        """The oldest step's results; blocks until it is done."""
        lane = self._in_flight.popleft()
        began = time.perf_counter()
        lane.readback.wait()
        waited = time.perf_counter()
        recorded = lane.recorded
        data = lane.readback.read(recorded.n_bytes)
        self._free.append(lane)
        times = None
        if self._timestamps and lane.n_queries:
            times = self._timestamps.milliseconds(data, lane.n_queries, recorded.query_at)
        read_ms = (time.perf_counter() - waited) * 1e3
        return Collected(lane, data, times, lane.submit_ms + (waited - began) * 1e3, read_ms)

    def run(self, recorded: RecordedPlan, step: Step) -> None:
        """Run a step without reading its results, and wait for everything submitted."""
        self._run(self._prepare(recorded, recorded.n_queries), step)

    def dispatch_times(self, recorded: RecordedPlan, step: Step, repeat: int) -> Times | None:
        """(repeat, n_dispatches) ms of each dispatch on the GPU, in `repeat` runs of a step after
        one that is not counted; None where the device has no clock. No steps may be in flight."""
        if self._timestamps is None:
            return None
        timer = DispatchTimer(self._device, self._calls, recorded.plan)
        self._write(pack_step(step, self._step_bytes, self._blocks))
        timer.run()  # the first run of a pipeline compiles it
        return np.stack([timer.run() for _ in range(repeat)])

    def warm(self, dispatch: PassDispatch) -> None:
        """Run one dispatch of a plan for no rows: its shader returns at once, but drivers that
        compile at first use have done it by then."""
        self._run(self._calls.prepare(StepCommands(((dispatch,),))), NOTHING)

    def _run(self, prepared: Any, step: Step) -> None:
        self._write(pack_step(step, self._step_bytes, self._blocks))
        self._calls.submit(self._calls.encode(prepared))
        self._calls.wait()

    def _prepare(self, recorded: RecordedPlan, n_queries: int) -> Any:
        key = (recorded.key, n_queries)
        prepared = self._prepared.get(key)
        if prepared is None:
            prepared = self._calls.prepare(self._commands(recorded, n_queries))
            self._prepared[key] = prepared
        return prepared

    def _commands(self, recorded: RecordedPlan, n_queries: int) -> StepCommands:
        copies, at = [], recorded.sample_bytes
        if at:
            copies.append(Copy(self._tensors.results.buffer, at, 0))
        if capture := recorded.capture:
            for tensor in capture.kept:
                copies.append(Copy(tensor.buffer, tensor.n_bytes, at))
                at += tensor.n_bytes
        if self._timestamps is None or not n_queries:
            return StepCommands(recorded.plan.segments(), tuple(copies))
        return StepCommands(
            recorded.plan.segments(),
            tuple(copies),
            self._timestamps.timing(n_queries, recorded.query_at),
            FIRST_MARK if n_queries > FIRST_MARK else None,
        )
