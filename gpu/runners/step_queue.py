"""Queue of the steps in flight: encoded, submitted, read back in order.

Submitting writes one uniform buffer, replays a recorded plan into one compute pass, copies the
results to a readback buffer and submits once. Collecting waits for that submission alone, so later
steps keep the GPU busy meanwhile. All that a step needs is made once: a ring of readback slots, and
each plan's commands. With `DevicePolicy.submits_apart` the caller only records a step;
`gpu.webgpu.submissions` does the rest while the caller records the next one.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from gpu.kv.pools import KvPools
from gpu.plans.plan_cache import RecordedPlan, StepTensors
from gpu.runners.dispatch_timer import DispatchTimer
from gpu.runners.expert_offload import ExpertOffload
from gpu.runners.step_inputs import StepInputs
from gpu.step import ExpertUse, Floats, Step, Times
from gpu.webgpu.buffers import Memory
from gpu.webgpu.calls import open_calls
from gpu.webgpu.commands import BufferCopy, StepCommands
from gpu.webgpu.plan import Dispatch
from gpu.webgpu.timestamps import FIRST_MARK, Timestamps

EMPTY_STEP = Step(())


class ReadbackSlot:
    """A readback buffer, and the step that writes its results to it. `submitted`: when the step is,
    if another thread submits it."""

    __slots__ = (
        "encode_ms",
        "experts",
        "finish_ms",
        "inputs",
        "n_queries",
        "readback",
        "recorded",
        "step",
        "submit_ms",
        "submitted",
    )

    recorded: RecordedPlan

    def __init__(self, readback: Any, inputs: StepInputs) -> None:
        self.readback = readback
        self.inputs = inputs
        self.submitted: Future[None] | None = None
        self.step = EMPTY_STEP
        self.n_queries = 0
        self.experts: ExpertUse | None = None
        self.encode_ms = 0.0
        self.finish_ms = 0.0
        self.submit_ms = 0.0


@dataclass(frozen=True, slots=True)
class Collected:
    """Results of a step as read back.

    readback_slot  valid until the next submission
    data           bytes of the results
    times          GPU times in ms by the device's clock: begin, end, marks
    wait_ms        time that the host waited for the results
    read_ms        time that it took to copy them
    """

    readback_slot: ReadbackSlot
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
        offload: ExpertOffload | None = None,
    ) -> None:
        self._device = device = memory.device
        self._tensors = tensors
        self._offload = offload
        self._apart = device.policy.submits_apart and offload is None and not device.checked
        self._calls = calls = open_calls(device)
        self._inputs = StepInputs(calls, tensors, pools.step_tables)  # of steps outside the queue
        self._timestamps = Timestamps(device, n_marks) if device.has_timestamps else None
        self._started: set[int] = set()  # kernels that have run, by their identity
        self._free = deque(
            ReadbackSlot(
                calls.readback(result_bytes, f"readback{i}"),
                StepInputs(calls, tensors, pools.step_tables),
            )
            for i in range(depth)
        )
        self._in_flight: deque[ReadbackSlot] = deque()
        n_times = self._timestamps.n_bytes if self._timestamps else 0
        memory.n_bytes["work"] += depth * result_bytes + n_times

    def __len__(self) -> int:
        return len(self._in_flight)

    def submit(
        self,
        recorded: RecordedPlan,
        step: Step,
        received: Floats | None = None,
        *,
        marks: bool = True,
    ) -> None:
        """Submit a step. `received` (n_rows, width): what the stage before has sent; None in the
        first. `marks` False: without timestamps inside the pass. Raises IndexError if `depth` steps
        are in flight already."""
        asked = time.perf_counter()
        n_queries = self._n_queries(recorded, marks)
        prepared = self._prepare(recorded, n_queries)
        readback_slot = self._free.popleft()
        readback_slot.recorded, readback_slot.step = recorded, step
        readback_slot.n_queries = n_queries
        readback_slot.inputs.pack(step, recorded.received, received)
        if not self._apart:
            self._device.submissions.settle()  # of another runner on this device
            readback_slot.inputs.write()
            readback_slot.experts = self._run_offloaded(recorded, step)
        began = time.perf_counter()
        encoder = self._calls.record(prepared, readback_slot.readback)
        readback_slot.encode_ms = (time.perf_counter() - began) * 1e3
        readback_slot.submit_ms = (began - asked) * 1e3
        if self._apart:
            task = partial(self._write_and_submit, readback_slot, encoder)
            readback_slot.submitted = self._device.submissions.post(task)
        else:
            self._finish_and_submit(readback_slot, encoder)
        self._in_flight.append(readback_slot)

    def _write_and_submit(self, readback_slot: ReadbackSlot, encoder: Any) -> None:
        readback_slot.inputs.write()
        self._finish_and_submit(readback_slot, encoder)

    def _finish_and_submit(self, readback_slot: ReadbackSlot, encoder: Any) -> None:
        began = time.perf_counter()
        commands = self._calls.finish(encoder)
        encoded = time.perf_counter()
        self._calls.submit(commands, readback_slot.readback)
        readback_slot.finish_ms = (encoded - began) * 1e3
        readback_slot.encode_ms += readback_slot.finish_ms
        if not self._apart:
            readback_slot.submit_ms += (time.perf_counter() - encoded) * 1e3

    def collect(self) -> Collected:
        """Return the oldest step's results; blocks until it is done. Raises what submitting it
        raised."""
        readback_slot = self._in_flight.popleft()
        began = time.perf_counter()
        if readback_slot.submitted is not None:
            readback_slot.submitted.result()
            # While a thread waits for the device, wgpu lets no other submit. So the next step must
            # be submitted before, or the device would have nothing to do after this one.
            if self._in_flight and (following := self._in_flight[0].submitted) is not None:
                following.exception()
        readback_slot.readback.wait()
        waited = time.perf_counter()
        recorded = readback_slot.recorded
        data = readback_slot.readback.read(recorded.n_bytes)
        self._free.append(readback_slot)
        times = None
        if self._timestamps and readback_slot.n_queries:
            times = self._timestamps.milliseconds(data, readback_slot.n_queries, recorded.query_at)
        read_ms = (time.perf_counter() - waited) * 1e3
        wait_ms = (waited - began) * 1e3 + readback_slot.submit_ms
        return Collected(readback_slot, data, times, wait_ms, read_ms)

    def drop(self) -> None:
        """Wait for the steps in flight, whose results nobody wants."""
        while self._in_flight:
            with contextlib.suppress(Exception):  # whoever wants results has got the error
                self.collect()

    def run(self, recorded: RecordedPlan, step: Step, received: Floats | None = None) -> None:
        """Run a step without reading its results, and wait for everything submitted."""
        prepared = self._prepare(recorded, self._n_queries(recorded))
        self._write(recorded, step, received)
        self._run_offloaded(recorded, step)
        self._calls.submit(self._calls.encode(prepared))
        self._calls.wait()

    def run_segments(
        self,
        recorded: RecordedPlan,
        step: Step,
        segments: slice,
        received: Floats | None = None,
    ) -> None:
        """Run the part of a step between marks of its plan, and wait for everything submitted. Not
        with offloaded experts."""
        assert self._offload is None
        commands = StepCommands(recorded.plan.segments()[segments])
        self._write(recorded, step, received)
        self._calls.submit(self._calls.encode(self._calls.prepare(commands)))
        self._calls.wait()

    def run_one_by_one(
        self, recorded: RecordedPlan, step: Step, run: Callable[[Dispatch], None]
    ) -> Collected:
        """Run a step, every dispatch by `run`; return its results. Not with offloaded experts."""
        assert self._offload is None
        self._write(recorded, step)
        for dispatch in recorded.plan.dispatches:
            run(dispatch)
        readback_slot = self._free[0]
        readback_slot.recorded, readback_slot.step = recorded, step
        commands = StepCommands(((),), self._commands(recorded, 0).copies)
        to = readback_slot.readback
        self._calls.submit(self._calls.encode(self._calls.prepare(commands), to), to)
        to.wait()
        return Collected(readback_slot, to.read(recorded.n_bytes), None, 0.0, 0.0)

    def dispatch_times(
        self, recorded: RecordedPlan, step: Step, repeat: int, received: Floats | None = None
    ) -> Times | None:
        """Return the milliseconds of each dispatch on the GPU, (repeat, n_dispatches), in `repeat`
        runs of a step after one that is not counted; None if the device has no clock or experts are
        offloaded. No steps may be in flight."""
        if self._timestamps is None or self._offload is not None:
            return None
        timer = DispatchTimer(self._device, self._calls, recorded.plan)
        self._write(recorded, step, received)
        timer.run()  # the first run of a pipeline compiles it
        return np.stack([timer.run() for _ in range(repeat)])

    def warm(self, dispatch: Dispatch) -> bool:
        """Run one dispatch of a plan for no rows, and wait. Its shader returns at once, but drivers
        that compile at first use have compiled it by then. Returns False if its kernel has run
        before."""
        if not self._start(dispatch):
            return False
        self._calls.wait()
        return True

    def _write(self, recorded: RecordedPlan, step: Step, received: Floats | None = None) -> None:
        """Write the inputs of a step outside the queue."""
        self._inputs.pack(step, recorded.received, received)
        self._device.submissions.settle()
        self._inputs.write()

    def _start(self, dispatch: Dispatch) -> bool:
        """Do what `warm` does, without waiting."""
        if id(dispatch.kernel) in self._started:
            return False
        prepared = self._calls.prepare(StepCommands(((dispatch.in_pass,),)))
        self._started.add(id(dispatch.kernel))
        weakref.finalize(dispatch.kernel, self._started.discard, id(dispatch.kernel))
        self._inputs.pack(EMPTY_STEP)
        self._device.submissions.settle()
        self._inputs.write()
        self._calls.submit(self._calls.encode(prepared))
        return True

    def _run_offloaded(self, recorded: RecordedPlan, step: Step) -> ExpertUse | None:
        """Run the passes that upload experts from host memory, ahead of `_commands`, and return how
        they were used; None if all experts are on the device."""
        if self._offload is None:
            return None
        return self._offload.run_offloaded(recorded, len(step.rows))

    def _n_queries(self, recorded: RecordedPlan, marks: bool = True) -> int:
        """Return how many timestamps to take: none if a step takes several passes."""
        if self._offload is not None:
            return 0
        return recorded.n_queries if marks else min(recorded.n_queries, FIRST_MARK)

    def _prepare(self, recorded: RecordedPlan, n_queries: int) -> Any:
        """Return a plan's commands. May submit a step of its own, so it must come before the
        step's."""
        prepared = recorded.prepared.get(n_queries)
        if prepared is None:
            # The driver compiles the first kernels while wgpu still makes the others' pipelines.
            for dispatch in recorded.plan.dispatches:
                self._start(dispatch)
            prepared = self._calls.prepare(self._commands(recorded, n_queries))
            recorded.prepared[n_queries] = prepared
        return prepared

    def _commands(self, recorded: RecordedPlan, n_queries: int) -> StepCommands:
        copies, at = [], recorded.sample_bytes
        if at:
            copies.append(BufferCopy(self._tensors.sampler.results.buffer, at, 0))
        if capture := recorded.capture:
            for tensor in capture.kept:
                copies.append(BufferCopy(tensor.buffer, tensor.n_bytes, at))
                at += tensor.n_bytes
        if sent := recorded.sent:
            copies.append(BufferCopy(sent.buffer, recorded.sent_bytes, at, sent.offset))
        if self._offload is not None:
            return StepCommands((self._offload.rest(recorded.plan),), tuple(copies))
        if self._timestamps is None or not n_queries:
            return StepCommands(recorded.plan.segments(), tuple(copies))
        return StepCommands(
            recorded.plan.segments(),
            tuple(copies),
            self._timestamps.timing(n_queries, recorded.query_at),
            FIRST_MARK if n_queries > FIRST_MARK else None,
        )
