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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gpu import native, ops
from gpu.blocks import BLOCK_TOKENS, block_bytes, fit
from gpu.buffers import Memory as DeviceMemory
from gpu.buffers import Tensor, padded
from gpu.checkpoint import Checkpoint
from gpu.config import ModelConfig
from gpu.device import Device
from gpu.kernels import Kernels
from gpu.kv_cache import KvPools
from gpu.models.llama import Capture, Llama, Stream, Workspace
from gpu.ops import RESULT_WORDS, Batch
from gpu.plan import Plan, Recorder
from gpu.results import parse_captured, parse_samples
from gpu.step import Floats, Memory, RunnerLimits, Step, StepResult
from gpu.step_buffer import MAX_ROWS, MAX_SAMPLES, STEP_BYTES, pack_step
from gpu.timestamps import FIRST_MARK, Timestamps
from gpu.weights import WeightLoader

ROW_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128)
SAMPLE_BUCKETS = (0, 1, 2, 4, 8)
IN_FLIGHT = 3
CAPTURE_BYTES = 32 << 20
"""The residual streams that a captured step keeps may take this much in each of two arenas."""

PlanKey = tuple[int, int, str]
"""(rows bucket, samples bucket, "plain" | "captured" | "logits")"""


@dataclass(slots=True)
class _InFlight:
    step: Step
    plan: RecordedPlan
    readback: native.Readback
    submission: Any
    encode_ms: float
    submit_ms: float


@dataclass(frozen=True, slots=True)
class RecordedPlan:
    """A plan and where its results lie in the readback buffer: samples, then stats and entropy of
    a captured plan, then timestamps (begin, end, marks)."""

    key: PlanKey
    plan: Plan
    capture: Capture | None
    n_queries: int

    @property
    def sample_bytes(self) -> int:
        return self.key[1] * RESULT_WORDS * 4

    @property
    def query_at(self) -> int:
        captured = self.capture
        n = self.sample_bytes + (
            captured.stats.n_bytes + captured.entropy.n_bytes if captured else 0
        )
        return -(-n // 8) * 8

    @property
    def n_bytes(self) -> int:
        return self.query_at + 8 * self.n_queries


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
        self.kernels = Kernels(device)
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
        self._pools = KvPools(config, shape, dtype, n_slots, memory)
        self._work = Workspace.make(config, memory)
        self._step = memory.zeros("step", (STEP_BYTES // 4,), "u32", uniform=True)
        self._chosen = memory.zeros("chosen", (n_slots,), "u32")
        self._seen = memory.zeros("seen", (n_slots, -(-config.vocab_size // 32)), "u32")
        self._logits = memory.zeros("logits", (MAX_SAMPLES, padded(config.vocab_size)))
        self._results = memory.zeros("results", (MAX_SAMPLES, RESULT_WORDS), "u32")
        self._batch = Batch.make(memory, self._step, 1, 1)
        self.limits = RunnerLimits(
            n_slots=n_slots,
            context=shape.context,
            max_rows=MAX_ROWS,
            max_samples=MAX_SAMPLES,
            n_blocks=shape.n_blocks,
            block_tokens=BLOCK_TOKENS,
            block_bytes=block_bytes(config, dtype),
            max_captured_rows=self._max_captured_rows(),
        )
        self._captures: dict[int, Capture] = {}
        self._plans: dict[PlanKey, RecordedPlan] = {}
        self._pending: deque[_InFlight] = deque()
        self._step_bytes = bytearray(STEP_BYTES)
        self._timestamps = (
            Timestamps(device, n_marks=1 + 2 * config.n_layers) if device.has_timestamps else None
        )
        self._open_readbacks()

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
        width = self._seen.shape[1]
        bits = np.zeros(width * 32, np.uint8)
        bits[tokens] = 1
        words = np.packbits(bits, bitorder="little").view(np.uint32)
        self._memory.write(self._seen, words, at=slot * width * 4)

    def set_blocks(self, slot: int, blocks: list[int]) -> None:
        self._pools.set_blocks(slot, blocks)

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
            captured=parse_captured(
                data[pending.plan.sample_bytes :],
                self.config,
                pending.plan.key[0],
                len(pending.step.rows),
                times,
            )
            if pending.plan.capture
            else None,
            gpu_ms=float(times[1] - times[0]) if times is not None else None,
            encode_ms=pending.encode_ms,
            wait_ms=pending.submit_ms + (waited - began) * 1e3,
            read_ms=_ms_since(waited),
        )

    def logits(self, step: Step) -> Floats:
        assert not self._pending, "collect the steps in flight first"
        recorded = self._plan(
            (
                _bucket(len(step.rows), ROW_BUCKETS),
                _bucket(len(step.samples), SAMPLE_BUCKETS),
                "logits",
            )
        )
        self._write_step(step)
        encoder = self.gpu.wgpu.create_command_encoder()
        compute_pass = encoder.begin_compute_pass()
        self._replay(recorded, compute_pass)
        compute_pass.end()
        self.gpu.wgpu.queue.submit([encoder.finish()])
        logits = self._memory.read(self._logits)
        return np.ascontiguousarray(logits[: len(step.samples), : self.config.vocab_size])

    def close(self) -> None:
        while self._pending:
            self.collect()
        self.gpu.close()

    # ---- plans ------------------------------------------------------------------------------

    def plan_for(self, n_rows: int, n_samples: int, capture: bool) -> RecordedPlan:
        """The plan that a step of this size replays; recorded now if it is the first."""
        return self._plan(
            (
                _bucket(n_rows, ROW_BUCKETS),
                _bucket(n_samples, SAMPLE_BUCKETS),
                "captured" if capture else "plain",
            )
        )

    def _plan(self, key: PlanKey) -> RecordedPlan:
        if key not in self._plans:
            self._plans[key] = self._record(key)
        return self._plans[key]

    def _record(self, key: PlanKey) -> RecordedPlan:
        n_rows, n_samples, kind = key
        base = self._batch
        batch = Batch(self._step, n_rows, n_samples, base.unread, base.unwritten)
        rec = Recorder(self.gpu, self.kernels)
        capture = self._capture(n_rows) if kind == "captured" else None
        x = self.model.forward(rec, batch, self._work, self._pools, self._chosen, capture)
        if n_samples:
            self.model.logits(rec, batch, x, self._logits)
        if n_samples and kind != "logits":
            ops.sample(
                rec,
                batch,
                "sample",
                self.config.vocab_size,
                self._logits,
                self._seen,
                self._chosen,
                self._results,
            )
        n_queries = 0
        if self._timestamps and kind != "logits":
            n_queries = FIRST_MARK
            if kind == "captured" and self.gpu.has_pass_timestamps:
                n_queries += len(rec.plan.marks)
        return RecordedPlan(key, rec.plan, capture, n_queries)

    def _max_captured_rows(self) -> int:
        row = (self.config.n_layers + 1) * padded(self.config.hidden_size) * 4
        limit = min(CAPTURE_BYTES, self.gpu.max_binding_bytes) // row
        return max(b for b in ROW_BUCKETS if b <= max(1, limit))

    def _capture(self, n_rows: int) -> Capture:
        if n_rows not in self._captures:
            self._captures[n_rows] = self._make_capture(n_rows)
        return self._captures[n_rows]

    def _make_capture(self, n_rows: int) -> Capture:
        """Two arenas, because an op reads one state of the stream and writes the next, and no
        dispatch may read and write one buffer."""
        config, memory = self.config, self._memory
        width = padded(config.hidden_size)
        stride = -(-n_rows * width // 64) * 64  # 64 floats: the coarsest offset alignment, 256 B
        states = memory.zeros("capture.states", (config.n_layers + 1, stride))
        middles = memory.zeros("capture.middles", (config.n_layers, stride))

        def state(arena: Tensor, i: int) -> Tensor:
            name = f"{arena.name}[{i}]"
            return Tensor(
                name, arena.buffer, (n_rows, width), "f32", n_rows * width * 4, i * stride * 4
            )

        return Capture(
            Stream(lambda i: state(states, i), lambda i: state(middles, i)),
            states,
            middles,
            memory.zeros("capture.entropy", (config.n_layers, n_rows, config.n_heads)),
            memory.zeros("capture.stats", (n_rows, 1 + 3 * config.n_layers)),
        )

    # ---- one step ---------------------------------------------------------------------------

    def _write_step(self, step: Step) -> None:
        n_bytes = pack_step(step, self._step_bytes)
        self.gpu.wgpu.queue.write_buffer(self._step.buffer, 0, self._step_bytes, 0, n_bytes)

    def _encode(self, recorded: RecordedPlan, readback: native.Readback) -> Any:
        encoder = self.gpu.wgpu.create_command_encoder()
        compute_pass = (
            encoder.begin_compute_pass(timestamp_writes=self._timestamps.pass_writes)
            if self._timestamps and recorded.n_queries
            else encoder.begin_compute_pass()
        )
        self._replay(recorded, compute_pass)
        compute_pass.end()
        at = 0
        sources = [self._results] if recorded.sample_bytes else []
        if recorded.capture:
            sources += [recorded.capture.stats, recorded.capture.entropy]
        for tensor in sources:
            n = recorded.sample_bytes if tensor is self._results else tensor.n_bytes
            encoder.copy_buffer_to_buffer(tensor.buffer, 0, readback.buffer, at, n)
            at += n
        if self._timestamps and recorded.n_queries:
            self._timestamps.copy(encoder, recorded.n_queries, readback.buffer, recorded.query_at)
        return encoder.finish()

    def _replay(self, recorded: RecordedPlan, compute_pass: Any) -> None:
        marked = self._timestamps and recorded.n_queries > FIRST_MARK
        if self.gpu.checked and not marked:
            recorded.plan.encode_checked(compute_pass)
        else:
            queries = self._timestamps.query_set if self._timestamps and marked else None
            recorded.plan.encode(compute_pass, queries, FIRST_MARK)

    def _times(self, recorded: RecordedPlan, data: bytes) -> Floats | None:
        """Milliseconds of begin, end and marks, from the first of them."""
        if not self._timestamps or not recorded.n_queries:
            return None
        return self._timestamps.milliseconds(data, recorded.n_queries, recorded.query_at)

    def _open_readbacks(self) -> None:
        config, rows = self.config, self.limits.max_captured_rows
        captured = rows * (1 + 3 * config.n_layers + config.n_layers * config.n_heads) * 4
        n_bytes = MAX_SAMPLES * RESULT_WORDS * 4 + captured + 8 * (5 + 2 * config.n_layers)
        self._readbacks = deque(
            native.Readback(self.gpu.wgpu, -(-n_bytes // 8) * 8, f"readback{i}")
            for i in range(IN_FLIGHT)
        )


def _bucket(n: int, buckets: tuple[int, ...]) -> int:
    for bucket in buckets:
        if n <= bucket:
            return bucket
    raise ValueError(f"a step of {n} is larger than {buckets[-1]}")


def _ms_since(began: float) -> float:
    return (time.perf_counter() - began) * 1e3
