"""Carries out steps on the GPU: picks the recorded plan, writes the step's numbers, submits, and
reads behind.

A plan is recorded the first time its shape is needed (rows and samples rounded up to a bucket,
captured or not). Submitting writes one uniform buffer, replays the plan into one compute pass,
copies the results to a readback buffer and submits once. Collecting waits for that submission
alone, so later steps keep the GPU busy meanwhile.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gpu import native
from gpu.blocks import BLOCK_TOKENS, block_bytes, fit
from gpu.buffers import Memory as DeviceMemory
from gpu.buffers import Tensor
from gpu.checkpoint import Checkpoint
from gpu.config import ModelConfig
from gpu.device import Device
from gpu.kv_cache import KvPools
from gpu.models.llama import Llama
from gpu.plan_book import PlanBook, RecordedPlan, StepTensors
from gpu.results import parse_captured, parse_samples
from gpu.step import Captured, Floats, Memory, RunnerLimits, Step, StepResult, Times
from gpu.step_buffer import MAX_ROWS, MAX_SAMPLES, STEP_BYTES, pack_step
from gpu.timestamps import FIRST_MARK, Timestamps
from gpu.weights import WeightLoader

IN_FLIGHT = 3
WARM_UP = (
    ("captured", 1),
    ("captured", 8),
    ("plain", 1),
    ("plain", 8),
    ("captured", 2),
    ("captured", 4),
    ("plain", 2),
    ("plain", 4),
)
"""Kinds and rows of the plans worth compiling early: tiles grow with the rows, up to 8."""


@dataclass(slots=True)
class _InFlight:
    step: Step
    plan: RecordedPlan
    readback: native.Readback
    submission: Any
    encode_ms: float
    submit_ms: float


class WgpuRunner:
    """A model on a GPU. Implements `gpu.step.Runner`."""

    in_flight = IN_FLIGHT

    def __init__(
        self,
        device: Device,
        config: ModelConfig,
        checkpoint: Checkpoint,
        *,
        dtype: str = "f16",
        context: int | None = None,
        kv_bytes: int | None = None,
        n_slots: int = 4,
        on_bytes: Callable[[int], None] = lambda n: None,
    ) -> None:
        self.config = config
        self.dtype = dtype
        self.gpu = device
        self.device = device.info
        self._memory = memory = DeviceMemory(device)
        shape = fit(
            config,
            dtype,
            n_slots,
            context=context,
            budget_bytes=kv_bytes,
            max_binding_bytes=device.max_binding_bytes,
        )
        self.model = Llama(
            config, WeightLoader(checkpoint, memory, dtype, on_bytes), memory, shape.context
        )
        self.pools = KvPools(config, shape, dtype, n_slots, memory)
        self._tensors = StepTensors.make(config, n_slots, memory)
        self.plans = PlanBook(device, self.model, self.pools, self._tensors, memory)
        self.limits = RunnerLimits(
            n_slots=n_slots,
            context=shape.context,
            max_rows=MAX_ROWS,
            max_samples=MAX_SAMPLES,
            n_blocks=shape.n_blocks,
            block_tokens=BLOCK_TOKENS,
            block_bytes=block_bytes(config, dtype),
            max_captured_rows=self.plans.max_captured_rows,
        )
        self._pending: deque[_InFlight] = deque()
        self._step_bytes = bytearray(STEP_BYTES)
        self._timestamps = (
            Timestamps(device, n_marks=1 + 2 * config.n_layers) if device.has_timestamps else None
        )
        self._readbacks = deque(
            native.Readback(device.wgpu, self.plans.max_result_bytes, f"readback{i}")
            for i in range(IN_FLIGHT)
        )

    @classmethod
    def load(
        cls,
        folder: Path,
        *,
        dtype: str = "f16",
        adapter: str | None = None,
        context: int | None = None,
        kv_bytes: int | None = None,
        n_slots: int = 4,
        checked: bool | None = None,
        progress: Callable[[float, str], None] = lambda fraction, message: None,
    ) -> WgpuRunner:
        """Open the adapter and load a model folder. Raises ModelError and DeviceError."""
        config = ModelConfig.from_folder(folder)
        checkpoint = Checkpoint.open(folder)
        device = Device.open(adapter, checked=checked)
        total = checkpoint.parameters(config.tie_embeddings) * (4 if dtype == "f32" else 2)
        read = 0

        def on_bytes(n: int) -> None:
            nonlocal read
            read += n
            message = f"loading weights, {read / 1e6:.0f} of {total / 1e6:.0f} MB"
            progress(min(1.0, read / total), message)

        return cls(
            device,
            config,
            checkpoint,
            dtype=dtype,
            context=context,
            kv_bytes=kv_bytes,
            n_slots=n_slots,
            on_bytes=on_bytes,
        )

    @property
    def memory(self) -> Memory:
        n = self._memory.n_bytes
        return Memory(weights=n["weights"], kv_cache=n["kv_cache"], work=n["work"])

    @property
    def dispatches_per_token(self) -> int:
        return len(self.plan_for(1, 1, capture=False).plan.dispatches)

    # ---- the runner protocol ----------------------------------------------------------------

    def begin_slot(self, slot: int, tokens: npt.NDArray[np.uint32]) -> None:
        width = self._tensors.seen.shape[1]
        bits = np.zeros(width * 32, np.uint8)
        bits[tokens] = 1
        words = np.packbits(bits, bitorder="little").view(np.uint32)
        self._memory.write(self._tensors.seen, words, at=slot * width * 4)

    def set_blocks(self, slot: int, blocks: list[int]) -> None:
        self.pools.set_blocks(slot, blocks)

    def submit(self, step: Step) -> None:
        began = time.perf_counter()
        recorded = self.plan_for(len(step.rows), len(step.samples), step.capture)
        readback = self._readbacks.popleft()
        self._write_step(step)
        commands = self._encode(recorded, readback)
        encoded = time.perf_counter()
        submission = native.submit(self.gpu.wgpu.queue, commands)
        readback.request()
        encode_ms, submit_ms = (encoded - began) * 1e3, _ms_since(encoded)
        self._pending.append(_InFlight(step, recorded, readback, submission, encode_ms, submit_ms))

    def collect(self) -> StepResult:
        pending = self._pending.popleft()
        began = time.perf_counter()
        native.wait(self.gpu.wgpu, pending.submission)
        waited = time.perf_counter()
        data = pending.readback.read(pending.plan.n_bytes)
        self._readbacks.append(pending.readback)
        times = self._times(pending.plan, data)
        return StepResult(
            samples=parse_samples(data, len(pending.step.samples)),
            captured=self._captured(pending, data, times),
            gpu_ms=float(times[1] - times[0]) if times is not None else None,
            gpu_began_ms=float(times[0]) if times is not None else None,
            encode_ms=pending.encode_ms,
            wait_ms=pending.submit_ms + (waited - began) * 1e3,
            read_ms=_ms_since(waited),
        )

    def logits(self, step: Step) -> Floats:
        assert not self._pending, "collect the steps in flight first"
        recorded = self.plans.plan(len(step.rows), len(step.samples), "logits")
        self._run_alone(recorded, step)
        logits = self._memory.read(self._tensors.logits)
        return np.ascontiguousarray(logits[: len(step.samples), : self.config.vocab_size])

    def warm_up(self) -> Iterator[None]:
        """Replays each plan for no rows: its shaders return at once, but drivers that compile at
        first use have done it by then. Plans with other buckets share the same kernels."""
        for kind, n in WARM_UP:
            self._run_alone(self.plans.plan(n, min(n, self.limits.n_slots), kind), Step(()))
            yield

    def close(self) -> None:
        while self._pending:
            self.collect()
        self.gpu.close()

    def plan_for(self, n_rows: int, n_samples: int, capture: bool) -> RecordedPlan:
        """The plan that a step of this size replays; recorded now if it is the first."""
        return self.plans.plan(n_rows, n_samples, "captured" if capture else "plain")

    # ---- one step ---------------------------------------------------------------------------

    def _write_step(self, step: Step) -> None:
        n_bytes = pack_step(step, self._step_bytes)
        self.gpu.wgpu.queue.write_buffer(self._tensors.step.buffer, 0, self._step_bytes, 0, n_bytes)

    def _run_alone(self, recorded: RecordedPlan, step: Step) -> None:
        """Run a step without reading its results, and wait for it."""
        self._write_step(step)
        encoder = self.gpu.wgpu.create_command_encoder()
        compute_pass = encoder.begin_compute_pass()
        recorded.plan.encode(compute_pass)
        compute_pass.end()
        self.gpu.wgpu.queue.submit([encoder.finish()])
        native.wait(self.gpu.wgpu)

    def _encode(self, recorded: RecordedPlan, readback: native.Readback) -> Any:
        encoder = self.gpu.wgpu.create_command_encoder()
        compute_pass = (
            encoder.begin_compute_pass(timestamp_writes=self._timestamps.pass_writes)
            if self._timestamps and recorded.n_queries
            else encoder.begin_compute_pass()
        )
        self._replay(recorded, compute_pass)
        compute_pass.end()
        for tensor, n_bytes, at in self._results(recorded):
            encoder.copy_buffer_to_buffer(tensor.buffer, 0, readback.buffer, at, n_bytes)
        if self._timestamps and recorded.n_queries:
            self._timestamps.copy(encoder, recorded.n_queries, readback.buffer, recorded.query_at)
        return encoder.finish()

    def _results(self, recorded: RecordedPlan) -> Iterator[tuple[Tensor, int, int]]:
        """What to copy to the readback buffer: tensor, bytes, where to."""
        at = recorded.sample_bytes
        if at:
            yield self._tensors.results, at, 0
        if capture := recorded.capture:
            yield capture.stats, capture.stats.n_bytes, at
            yield capture.entropies, capture.entropies.n_bytes, at + capture.stats.n_bytes

    def _replay(self, recorded: RecordedPlan, compute_pass: Any) -> None:
        marked = self._timestamps and recorded.n_queries > FIRST_MARK
        if self.gpu.checked and not marked:
            recorded.plan.encode_checked(compute_pass)
        else:
            queries = self._timestamps.query_set if self._timestamps and marked else None
            recorded.plan.encode(compute_pass, queries, FIRST_MARK)

    def _captured(self, pending: _InFlight, data: bytes, times: Times | None) -> Captured | None:
        recorded = pending.plan
        if recorded.capture is None:
            return None
        return parse_captured(
            data[recorded.sample_bytes :],
            self.config,
            bucket=recorded.key[0],
            n_rows=len(pending.step.rows),
            entropy_stride=recorded.capture.entropies.shape[1],
            times=times,
        )

    def _times(self, recorded: RecordedPlan, data: bytes) -> Times | None:
        """Milliseconds of begin, end and marks by the device's clock."""
        if not self._timestamps or not recorded.n_queries:
            return None
        return self._timestamps.milliseconds(data, recorded.n_queries, recorded.query_at)


def _ms_since(began: float) -> float:
    return (time.perf_counter() - began) * 1e3
