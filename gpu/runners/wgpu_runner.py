"""A model on a GPU: its weights, its KV cache, its plans, and the queue its steps go through.

A plan is recorded the first time its shape is needed (rows, samples and splits of the longest
context rounded up to a bucket, captured or not). `gpu.runners.step_queue` replays it; here a step
is matched to its plan, and the bytes that come back become a result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from gpu.checkpoint.kept import Kept, kept_weights
from gpu.checkpoint.packing import FORMATS
from gpu.checkpoint.reader import Checkpoint, Progress, WeightSource, loading
from gpu.checkpoint.weights import WeightLoader
from gpu.config import ModelConfig
from gpu.kv.blocks import BLOCK_TOKENS, block_bytes, fit
from gpu.kv.pools import KvPools
from gpu.lora.adapter import Lora, open_loras
from gpu.models.decoder import Decoder
from gpu.models.mixture import MixtureLlama
from gpu.models.registry import MODELS
from gpu.ops.step_buffer import MAX_ROWS, MAX_SAMPLES
from gpu.plans.book import PlanBook, RecordedPlan, StepTensors
from gpu.plans.cost import StepSize
from gpu.plans.lora_tables import LoraTables
from gpu.plans.view import listed
from gpu.reach import Reach
from gpu.runner import Memory, RunnerLimits
from gpu.runners.expert_offload import ExpertOffload
from gpu.runners.look_passes import LookPasses
from gpu.runners.results import parse_captured, parse_samples
from gpu.runners.step_queue import Collected, StepQueue
from gpu.step import Captured, Floats, Inspected, Look, Step, StepResult
from gpu.tuning.probe import tuned
from gpu.webgpu.buffers import Memory as DeviceMemory
from gpu.webgpu.device import Device
from gpu.webgpu.peaks import measure_peaks

IN_FLIGHT = 3
"""On a GPU: one step runs, one waits for it, one is encoded or read."""
SOFTWARE_IN_FLIGHT = 2
"""Mesa's software driver takes a step when the one before has ended: with three in flight every
result would be read a step late."""
TIMED_EVERY = 8
"""On a software device one captured step of this many takes the times of its layers."""
WARM_UP = (
    ("captured", 16, False),
    ("captured", 1, False),
    ("plain", 16, False),
    ("plain", 1, False),
    ("captured", 8, False),
    ("captured", 4, False),
    ("captured", 2, False),
    ("plain", 8, False),
    ("plain", 4, False),
    ("plain", 2, False),
    ("captured", 1, True),
    ("plain", 1, True),
)
"""Kinds and rows of the plans worth compiling early, and whether for a long context, in the order
that most first requests need them: a prompt's first piece, a token, then what other prompts end
with and runs together (tiles grow with the rows, up to 16), then long contexts, which are split."""


class WgpuRunner:
    """A model on a GPU. Implements `gpu.runner.Runner`."""

    def __init__(
        self,
        device: Device,
        config: ModelConfig,
        checkpoint: WeightSource,
        *,
        dtype: str = "f16",
        kv_dtype: str | None = None,
        context: int | None = None,
        kv_bytes: int | None = None,
        n_slots: int = 4,
        loras: Sequence[Lora] = (),
        on_weights: Callable[[int], None] = lambda n: None,
        kept: Kept | None = None,
        expert_slots: int | None = None,
    ) -> None:
        self.config = config
        self.dtype = dtype
        self.loras = tuple(lora.info for lora in loras)
        self.gpu = device
        self.device = device.info
        self._memory = memory = DeviceMemory(device)
        kv = kv_dtype or FORMATS[dtype].kv
        shape = fit(
            config,
            kv,
            n_slots,
            context=context,
            budget_bytes=kv_bytes,
            max_binding_bytes=device.max_binding_bytes,
        )
        n_tables = n_slots + 1  # the last is `RunnerLimits.inspection_slot`
        with WeightLoader(checkpoint, memory, dtype, on_weights, kept, expert_slots) as load:
            self.model = MODELS[config.model_type](config, load, memory, shape.context)
            self._loras = LoraTables(self.model, loras, n_tables, load)
        self.conversion = str(load.conversion)
        self.pools = KvPools(config, shape, kv, n_tables, memory)
        self._tensors = StepTensors.make(config, n_tables, memory)
        adapted = self._loras.adapted
        self.plans = PlanBook(device, self.model, self.pools, self._tensors, memory, adapted)
        self.limits = RunnerLimits(
            n_slots=n_slots,
            context=shape.context,
            max_rows=MAX_ROWS,
            max_samples=MAX_SAMPLES,
            n_blocks=shape.n_blocks,
            block_tokens=BLOCK_TOKENS,
            block_bytes=block_bytes(config, kv),
            max_captured_rows=self.plans.max_captured_rows,
        )
        offload = _offload(self.model, memory)
        depth = SOFTWARE_IN_FLIGHT if device.info.software else IN_FLIGHT
        # A step with offloaded experts ends when it is submitted, but for its last part.
        self.in_flight = depth if offload is None else 1
        self._queue = StepQueue(
            memory,
            self._tensors,
            self.pools,
            depth,
            self.plans.max_result_bytes,
            n_marks=1 + 2 * config.n_layers,
            offload=offload,
        )
        self._looks = LookPasses(config, self.plans, self._queue, self._tensors, memory)
        self._peaks: dict[str, float] | None = None
        self._n_watched = 0

    @classmethod
    def load(
        cls,
        folder: Path,
        *,
        dtype: str = "f16",
        kv_dtype: str | None = None,
        adapter: str | None = None,
        context: int | None = None,
        kv_bytes: int | None = None,
        n_slots: int = 4,
        loras: Mapping[str, str | Path] | None = None,
        checked: bool | None = None,
        probe: bool = False,
        keep_bytes: int = 0,
        expert_slots: int | None = None,
        products: str = "auto",
        progress: Progress = lambda fraction, message: None,
    ) -> WgpuRunner:
        """Open the adapter and load a model folder. `kv_dtype`: how keys and values are stored, of
        `gpu.kv.formats.KV_FORMATS`; None: as goes with `dtype`. `probe`: cut products as was
        measured to be best there, measuring it now if it never was; `loras`: folders of adapters by
        their names; `keep_bytes`: see `kept_weights`; `expert_slots`: of each layer, see
        `gpu.runners.expert_offload`; `products`: see `gpu.engine.engine.Engine.load`. Raises
        ModelError and DeviceError."""
        config = ModelConfig.from_folder(folder)
        checkpoint = Checkpoint.open(folder)
        opened = open_loras(loras or {}, config, checkpoint)
        device = Device.open(adapter, checked=checked)
        if probe:
            device = tuned(device, progress)
        if products != "auto":
            device = replace(device, tuning=replace(device.tuning, bytes=products == "bytes"))
        with kept_weights(checkpoint, config, dtype, keep_bytes) as kept:
            return cls(
                device,
                config,
                checkpoint,
                dtype=dtype,
                kv_dtype=kv_dtype,
                context=context,
                kv_bytes=kv_bytes,
                n_slots=n_slots,
                loras=opened,
                on_weights=loading(progress, checkpoint, config.tie_embeddings),
                kept=kept,
                expert_slots=expert_slots,
            )

    @property
    def memory(self) -> Memory:
        n = self._memory.n_bytes
        return Memory(weights=n["weights"], kv_cache=n["kv_cache"], work=n["work"])

    @property
    def dispatches_per_token(self) -> int:
        return len(self.plan_for(1, 1, capture=False).plan.dispatches)

    @property
    def products(self) -> str:
        return "float" if self.plans.byte_rows is None else "bytes"

    # ---- the runner protocol ----------------------------------------------------------------

    def begin_slot(self, slot: int, tokens: npt.NDArray[np.uint32]) -> None:
        width = self._tensors.seen.shape[1]
        bits = np.zeros(width * 32, np.uint8)
        bits[tokens] = 1
        words = np.packbits(bits, bitorder="little").view(np.uint32)
        self._memory.write(self._tensors.seen, words, at=slot * width * 4)
        self.set_reach(slot, None)

    def set_blocks(self, slot: int, blocks: list[int]) -> None:
        self.pools.set_blocks(slot, blocks)

    def copy_block(self, source: int, destination: int) -> None:
        self.pools.copy_block(source, destination)

    def set_reach(self, slot: int, reach: Reach | None) -> None:
        self._loras.set(slot, reach.loras if reach else {})
        self.plans.reach_tables.set(slot, reach)

    def submit(self, step: Step) -> None:
        recorded = self._plan_of(step, "captured" if step.capture else "plain")
        self._queue.submit(recorded, step, marks=self._times_layers(step))

    def collect(self) -> StepResult:
        done = self._queue.collect()
        lane, times = done.lane, done.times
        return StepResult(
            samples=parse_samples(done.data, len(lane.step.samples)),
            captured=self._captured(done),
            gpu_ms=float(times[1] - times[0]) if times is not None else None,
            gpu_began_ms=float(times[0]) if times is not None else None,
            encode_ms=lane.encode_ms,
            wait_ms=done.wait_ms,
            read_ms=done.read_ms,
            finish_ms=lane.finish_ms,
            submit_ms=lane.submit_ms,
            experts=lane.experts,
        )

    def logits(self, step: Step) -> Floats:
        assert not self._queue, "collect the steps in flight first"
        self._queue.run(self._plan_of(step, "logits"), step)
        logits = self._memory.read(self._tensors.logits)
        return np.ascontiguousarray(logits[: len(step.samples), : self.config.vocab_size])

    def profile(self, step: Step, repeat: int) -> Floats | None:
        assert not self._queue, "collect the steps in flight first"
        recorded = self._plan_of(step, "captured" if step.capture else "plain")
        times = self._queue.dispatch_times(recorded, step, repeat)
        if times is None or not times.any():  # drivers without a working clock leave zeros
            return None
        return np.median(times, axis=0).astype(np.float32)

    def list_plan(self, n_rows: int, context: int) -> dict[str, Any] | None:
        size = StepSize.checked(n_rows, context, self.limits)
        recorded = self.plan_for(size.n_rows, size.n_samples, False, size.n_keys)
        plan: dict[str, Any] = msgspec.to_builtins(listed(recorded, size))
        return plan

    def peaks(self) -> dict[str, float]:
        assert not self._queue, "collect the steps in flight first"
        if self._peaks is None:
            self._peaks = asdict(measure_peaks(self.gpu))
        return self._peaks

    def inspect(self, step: Step, look: Look) -> Inspected:
        assert not self._queue, "collect the steps in flight first"
        look.expect(step, self.limits.context)
        return self._looks.run(step, look)

    def warm_up(self, *, reach: bool = False) -> Iterator[None]:
        """Compiles one kernel at a time, so that a request which comes meanwhile waits for no other
        than its own. Plans with other buckets share the same kernels."""
        for recorded in self._plans_to_reach() if reach else self._plans_to_warm():
            for dispatch in recorded.plan.dispatches:
                if self._queue.warm(dispatch):
                    yield

    def _plans_to_reach(self) -> Iterator[RecordedPlan]:
        """Of a token and of a prompt's pieces, which somebody waits for; captured ones have the
        same kernels but for what the plain warm-up brings."""
        for n in (1, 16):
            yield self.plans.plan(n, self._most_samples(n), "plain", reach=True)

    def _plans_to_warm(self) -> Iterator[RecordedPlan]:
        limits = self.limits
        for kind, n, long in WARM_UP:
            rows = min(n, limits.max_captured_rows) if kind == "captured" else n
            context = limits.context if long else 1
            samples = self._most_samples(rows)
            yield self.plans.plan(rows, samples, kind, context)
            if self.loras:
                yield self.plans.plan(rows, samples, kind, context, loras=True)
        yield from self._looks.first_plans()

    def _most_samples(self, n_rows: int) -> int:
        """Samples of the largest step of so many rows."""
        return min(n_rows, self.limits.n_slots, self.limits.max_samples)

    def close(self) -> None:
        while self._queue:
            self._queue.collect()
        self.plans.kernels.close()
        self.gpu.close()

    def plan_for(
        self, n_rows: int, n_samples: int, capture: bool, context: int = 1
    ) -> RecordedPlan:
        """The plan that a step of this size replays, recorded now if it is the first; `context`:
        tokens of its longest sequence."""
        return self.plans.plan(n_rows, n_samples, "captured" if capture else "plain", context)

    def _times_layers(self, step: Step) -> bool:
        """Does this step take the GPU times of its layers, if it is captured? Every one on a GPU.
        A software device stops and starts for each time, so there tokens are timed in turn."""
        if not step.capture or not self.device.software or len(step.rows) > self.limits.n_slots:
            return True
        self._n_watched += 1
        return self._n_watched % TIMED_EVERY == 1

    def _plan_of(self, step: Step, kind: str) -> RecordedPlan:
        n_rows, n_samples = len(step.rows), len(step.samples)
        return self.plans.plan(n_rows, n_samples, kind, step.context, step.reach, step.loras)

    def _captured(self, done: Collected) -> Captured | None:
        lane = done.lane
        recorded = lane.recorded
        if recorded.capture is None:
            return None
        routings = recorded.capture.routings
        return parse_captured(
            done.data[recorded.sample_bytes :],
            self.config,
            bucket=recorded.key.rows,
            n_rows=len(lane.step.rows),
            entropy_stride=recorded.capture.entropies.shape[1],
            routing_stride=routings.chosen.shape[1] if routings else 0,
            times=done.times,
        )


def _offload(model: Decoder, memory: DeviceMemory) -> ExpertOffload | None:
    """What brings experts of a model to the device where not all lie there."""
    if not isinstance(model, MixtureLlama) or model.config.experts is None:
        return None
    if all(mixture.is_resident for mixture in model.mixtures.values()):
        return None
    return ExpertOffload(memory, model.mixtures, model.config.experts.per_token)
