"""A model on a GPU: its weights, its KV cache, its plans, and the queue its steps go through.

A plan is recorded the first time its shape is needed (rows, samples and splits of the longest
context rounded up to a bucket, captured or not). `gpu.runners.step_queue` replays it; here a step
is matched to its plan, and the bytes that come back become a result.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from gpu.checkpoint.open_model import open_model
from gpu.checkpoint.readback import matrix_rows
from gpu.checkpoint.reader import Progress, WeightSource, weight_progress
from gpu.checkpoint.weight_cache import WeightCache, open_weight_cache
from gpu.checkpoint.weights import WeightLoader
from gpu.config import ModelConfig
from gpu.errors import InvalidRequest
from gpu.info import DeviceInfo, MemoryInfo, StageInfo
from gpu.interventions.active import ActiveInterventions
from gpu.kv.copies import TokenMove
from gpu.kv.host_pool import HostPool
from gpu.load_options import DEFAULT_OPTIONS, LoadOptions
from gpu.lora.adapter import Lora, open_loras
from gpu.models.decoder import Decoder
from gpu.plans.cost import step_size
from gpu.plans.plan_cache import RecordedPlan
from gpu.plans.plan_report import PlanReport
from gpu.plans.report_builder import plan_report
from gpu.runners.checked_run import CheckedRun, checked_kernels
from gpu.runners.expert_offload import ExpertOffload
from gpu.runners.inspection_passes import InspectionPasses
from gpu.runners.kv_shift import KvShift
from gpu.runners.layer_reader import LayerReader
from gpu.runners.loaded_model import LoadedModel, StagePart
from gpu.runners.results import parse_captured, parse_samples, parse_sent
from gpu.runners.step_queue import Collected, StepQueue
from gpu.sampling_params import TokenBias
from gpu.step import (
    Captured,
    Floats,
    InspectionRequest,
    InspectionResult,
    NonFinite,
    Selfhash,
    Step,
    StepResult,
)
from gpu.tuning.autotune import load_tuning
from gpu.webgpu.buffers import Memory as DeviceMemory
from gpu.webgpu.device import Device
from gpu.webgpu.peaks import measure_peaks

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
"""Plans worth compiling early: kind, rows, whether for a long context. Ordered as most first
requests need them: a prompt's first chunk, a token, then the last chunks of other prompts and
concurrent runs (tiles grow with the rows, up to 16), then long contexts, which are split."""


class WgpuRunner:
    """A model on a GPU. Implements `gpu.runner.Runner`.

    With `part`, a stage of a model: `config` is that of its layers. Unless it is the first, its
    steps come with the rows that the stage before has sent (`received`). Unless it is the last, it
    samples nothing, and its results have the rows for the next stage (`StepResult.sent`).
    """

    stages: tuple[StageInfo, ...] = ()

    def __init__(
        self,
        device: Device,
        config: ModelConfig,
        checkpoint: WeightSource,
        options: LoadOptions = DEFAULT_OPTIONS,
        *,
        loras: Sequence[Lora] = (),
        on_weights: Callable[[int], None] = lambda n: None,
        weight_cache: WeightCache | None = None,
        part: StagePart | None = None,
    ) -> None:
        """`config`: that of the whole model. `loras`: the adapters of `options.loras`, opened.
        `on_weights` gets the number of weights of each tensor that was uploaded."""
        self.dtype = dtype = options.dtype
        self.loras = tuple(lora.info for lora in loras)
        self.gpu = device
        self.device: DeviceInfo = device.info
        self._memory = memory = DeviceMemory(device)
        with WeightLoader(
            checkpoint, memory, dtype, on_weights, weight_cache, options.expert_slots
        ) as load:
            loaded = LoadedModel.make(config, options, load, loras, part)
        self.conversion = str(load.conversion)
        self.model, self.pools = loaded.model, loaded.pools
        self.config, self.stage = self.model.config, self.model.stage
        self.plans, self.limits = loaded.plans, loaded.limits
        self._loras, self._tensors = loaded.loras, loaded.tensors
        self._host_pool = HostPool(self.pools, self.limits.n_host_blocks, memory)
        self.kv_shift = KvShift(self.model, self.pools, self.plans.kernels, memory)
        offload = _offload(self.model, memory)
        depth = device.policy.steps_in_flight
        # With offloaded experts, all but the last part of a step is done when `submit` returns.
        self.in_flight = depth if offload is None else 1
        self._queue = self._make_queue(depth, offload)
        self._inspection = InspectionPasses(
            self.config,
            self.plans,
            self._queue,
            self._tensors,
            memory,
            LayerReader(self.model, self.pools, self.plans, self._queue, memory),
        )
        self._biases: dict[int, tuple[TokenBias, ...]] = {}  # of each slot, as uploaded
        self._peaks: dict[str, float] | None = None
        self._n_captured = 0
        self._checked: CheckedRun | None = None
        self._offloads = offload is not None
        self._owns_device = True

    def _make_queue(self, depth: int, offload: ExpertOffload | None) -> StepQueue:
        return StepQueue(
            self._memory,
            self._tensors,
            self.pools,
            depth,
            self.plans.max_result_bytes,
            n_marks=1 + 2 * self.config.n_layers,
            offload=offload,
        )

    @classmethod
    def load(
        cls,
        folder: Path,
        options: LoadOptions = DEFAULT_OPTIONS,
        *,
        checked: bool | None = None,
        progress: Progress = lambda fraction, message: None,
        beside: WgpuRunner | None = None,
    ) -> WgpuRunner:
        """Open the adapter and load a model folder. `checked`: validate every command, see
        `gpu.webgpu.device.Device.open`. `beside`: share the open device of this runner, which is to
        be closed later. Raises ModelError and DeviceError."""
        config, checkpoint = open_model(folder)
        loras = open_loras(options.loras, config, checkpoint)
        device = beside.gpu if beside else open_device(options, checked, progress)
        cache = open_weight_cache(checkpoint, config, options.dtype, options.weight_cache_bytes)
        with cache as weight_cache:
            runner = cls(
                device,
                config,
                checkpoint,
                options,
                loras=loras,
                on_weights=weight_progress(progress, checkpoint, config.tie_embeddings),
                weight_cache=weight_cache,
            )
        runner._owns_device = beside is None
        return runner

    @property
    def memory(self) -> MemoryInfo:
        n = self._memory.n_bytes
        return MemoryInfo(weights=n["weights"], kv_cache=n["kv_cache"], work=n["work"])

    @property
    def dispatches_per_token(self) -> int:
        return len(self.plan_for(1, 1, capture=False).plan.dispatches)

    @property
    def activations(self) -> str:
        return "f32" if self.plans.quantized_rows is None else "q8"

    # ---- the runner protocol ----------------------------------------------------------------

    def begin_slot(self, slot: int, tokens: npt.NDArray[np.uint32], n_written: int = 0) -> None:
        self.set_text(slot, tokens, n_written)
        self.set_interventions(slot, None)

    def set_text(self, slot: int, tokens: npt.NDArray[np.uint32], n_written: int) -> None:
        self._tensors.sampler.texts.set_text(self._memory, slot, tokens, n_written)

    def set_grammar_bitmask(self, slot: int, bitmask: npt.NDArray[np.uint32]) -> None:
        allowed = self._tensors.sampler.allowed
        self._memory.write(allowed, bitmask, at=slot * allowed.shape[1] * 4)

    def set_greenlist(self, slot: int, bitmask: npt.NDArray[np.uint32]) -> None:
        greenlist = self._tensors.sampler.greenlist
        self._memory.write(greenlist, bitmask, at=slot * greenlist.shape[1] * 4)

    def set_selfhash(self, slot: int, selfhash: Selfhash) -> None:
        n_words = self._tensors.sampler.greenlist.shape[1]
        self.set_greenlist(slot, np.zeros(n_words, np.uint32))  # the device sets bits
        self.plans.selfhash.set(self._memory, slot, selfhash)

    def set_blocks(self, slot: int, blocks: list[int], group: int = 0) -> None:
        self.pools.set_blocks(slot, blocks, group)

    def copy_block(self, source: int, destination: int) -> None:
        self.pools.copy_block(source, destination)

    def store_block(self, block: int, place: int) -> None:
        self._host_pool.store_block(block, place)

    def load_block(self, place: int, block: int) -> None:
        self._host_pool.load_block(place, block)

    def shift_kv(self, moves: Sequence[TokenMove], group: int = 0) -> None:
        self.kv_shift.submit(moves, group)

    def set_rope(self, *, rotates: bool, n_positions: int) -> None:
        assert not self._queue, "collect the steps in flight first"
        self.gpu.submissions.settle()
        self.model.set_rope(self._memory, self.limits.context, n_positions, rotates=rotates)

    def set_interventions(self, slot: int, active: ActiveInterventions | None) -> None:
        self._loras.set(slot, active.loras if active else {})
        self.plans.intervention_buffers.set(slot, active)

    def submit(self, step: Step, received: Floats | None = None) -> None:
        if self.stage.is_last:
            self._set_biases(step)
        recorded = self._plan_of(step, "captured" if step.capture else "plain")
        self._queue.submit(recorded, step, received, marks=self._is_timed(step))

    def collect(self) -> StepResult:
        return self._result(self._queue.collect())

    def run_checked(self, step: Step, like: Step) -> tuple[StepResult, NonFinite | None]:
        assert not self._queue, "collect the steps in flight first"
        if self._offloads:
            self.submit(step)
            return self.collect(), None
        if self._checked is None:
            kernels = checked_kernels(self.gpu, self.model)
            self._checked = CheckedRun(self._memory, self.pools, self.plans.splits, kernels)
        checked = self._checked
        self._set_biases(step)
        recorded = self._plan_of(like, "captured" if like.capture else "plain")
        checked.begin(recorded, step)
        done = self._queue.run_one_by_one(recorded, step, checked.run)
        return self._result(done), checked.found

    def _result(self, done: Collected) -> StepResult:
        readback_slot, times = done.readback_slot, done.times
        return StepResult(
            samples=parse_samples(done.data, self._n_samples(len(readback_slot.step.samples))),
            captured=self._captured(done),
            gpu_ms=float(times[1] - times[0]) if times is not None else None,
            gpu_began_ms=float(times[0]) if times is not None else None,
            encode_ms=readback_slot.encode_ms,
            wait_ms=done.wait_ms,
            read_ms=done.read_ms,
            finish_ms=readback_slot.finish_ms,
            submit_ms=readback_slot.submit_ms,
            experts=readback_slot.experts,
            sent=parse_sent(done.data, readback_slot.recorded, len(readback_slot.step.rows)),
        )

    def logits(self, step: Step, received: Floats | None = None) -> Floats:
        assert not self._queue, "collect the steps in flight first"
        self._queue.run(self._plan_of(step, "logits"), step, received)
        logits = self._memory.read(self._tensors.sampler.logits)
        return np.ascontiguousarray(logits[: len(step.samples), : self.config.vocab_size])

    def profile(self, step: Step, repeat: int, received: Floats | None = None) -> Floats | None:
        assert not self._queue, "collect the steps in flight first"
        recorded = self._plan_of(step, "captured" if step.capture else "plain")
        times = self._queue.dispatch_times(recorded, step, repeat, received)
        if times is None or not times.any():  # drivers without a working clock leave zeros
            return None
        return np.median(times, axis=0).astype(np.float32)

    def list_plan(self, n_rows: int, context: int) -> dict[str, Any] | None:
        plan: dict[str, Any] = msgspec.to_builtins(self.report_plan(n_rows, context))
        return plan

    def report_plan(self, n_rows: int, context: int) -> PlanReport:
        """Return what `list_plan` returns, as a struct."""
        size = step_size(n_rows, context, self.limits)
        recorded = self.plan_for(size.n_rows, size.n_samples, False, size.n_keys)
        return plan_report(recorded, size)

    @property
    def n_weight_tensors(self) -> int:
        return len(self._memory.weight_tensors)

    def weight_digest(self, number: int) -> tuple[bytes, int] | None:
        assert not self._queue, "collect the steps in flight first"
        if self._offloads:
            raise InvalidRequest(
                "experts are copied to the device as they are needed, so its weights change; start "
                "the server without --expert-slots",
                "kind",
            )
        if number >= self.n_weight_tensors:
            return None
        data = self._memory.read(self._memory.weight_tensors[number]).tobytes()
        return hashlib.sha256(data).digest(), len(data)

    def peaks(self) -> dict[str, float]:
        assert not self._queue, "collect the steps in flight first"
        if self._peaks is None:
            self._peaks = asdict(measure_peaks(self.gpu))
        return self._peaks

    def inspect(
        self, step: Step, request: InspectionRequest, received: Floats | None = None
    ) -> InspectionResult:
        assert not self._queue, "collect the steps in flight first"
        request.validate(step, self.limits.context)
        if request.layer and self._offloads:
            raise InvalidRequest(
                "the activations of a layer cannot be read while experts wait in host memory; "
                "load the model without --expert-slots",
                "layer",
            )
        return self._inspection.run(step, request, received)

    def unembed(self, states: Floats) -> Floats:
        assert not self._queue, "collect the steps in flight first"
        return self._inspection.unembed(states)

    def embedding_rows(self, first: int, n: int) -> Floats:
        assert not self._queue, "collect the steps in flight first"
        return matrix_rows(self.model.embedding, self._memory, first, n)

    def warm_up(self, *, interventions: bool = False) -> Iterator[None]:
        """Compile one kernel at a time, so that a request that arrives meanwhile waits for no
        kernels but its own. Plans with other buckets share the same kernels."""
        for recorded in (
            self._plans_with_interventions() if interventions else self._plans_to_warm()
        ):
            for dispatch in recorded.plan.dispatches:
                if self._queue.warm(dispatch):
                    yield

    def _plans_with_interventions(self) -> Iterator[RecordedPlan]:
        """Yield the plans of one token and of a prompt's chunk. Captured plans need no kernels that
        these and the plain warm-up do not have."""
        for n in (1, 16):
            yield self.plans.plan(n, self._most_samples(n), "plain", interventions=True)

    def _plans_to_warm(self) -> Iterator[RecordedPlan]:
        limits = self.limits
        for kind, n, long in WARM_UP:
            rows = min(n, limits.max_captured_rows) if kind == "captured" else n
            context = limits.context if long else 1
            samples = self._most_samples(rows)
            yield self.plans.plan(rows, samples, kind, context)
            if self.loras:
                yield self.plans.plan(rows, samples, kind, context, loras=True)
        yield from self._inspection.first_plans(lens=self.stage.is_last)

    def _most_samples(self, n_rows: int) -> int:
        """Return the samples of the largest step of `n_rows` rows."""
        return self._n_samples(min(n_rows, self.limits.slots, self.limits.max_samples))

    def _n_samples(self, n: int) -> int:
        """Return how many of a step's `n` samples are computed here."""
        return n if self.stage.is_last else 0

    def close(self) -> None:
        self._queue.drop()
        self.plans.kernels.close()
        if self._checked is not None:
            self._checked.close()
        if self._owns_device:
            self.gpu.close()

    def plan_for(
        self, n_rows: int, n_samples: int, capture: bool, context: int = 1
    ) -> RecordedPlan:
        """Return the plan for a step of this size, recorded now if it is the first. `context`:
        tokens of its longest sequence."""
        kind = "captured" if capture else "plain"
        return self.plans.plan(n_rows, self._n_samples(n_samples), kind, context)

    def _set_biases(self, step: Step) -> None:
        """Upload the biases of samples whose slot has others."""
        for sample in step.samples:
            biases = sample.logit_bias
            if biases and self._biases.get(sample.slot) is not biases:
                self._tensors.sampler.texts.set_biases(self._memory, sample.slot, biases)
                self._biases[sample.slot] = biases

    def _is_timed(self, step: Step) -> bool:
        """Return whether this step, if it is captured, takes the GPU times of its layers. A device
        may stop and start for each timestamp; then only prompts and some tokens are timed."""
        timed_every = self.gpu.policy.timed_every
        if not step.capture or timed_every == 1 or len(step.rows) > len(step.samples):
            return True
        self._n_captured += 1
        return self._n_captured % timed_every == 1

    def _plan_of(self, step: Step, kind: str) -> RecordedPlan:
        n_rows, n_samples = len(step.rows), len(step.samples)
        apart = n_rows == n_samples == len({sample.slot for sample in step.samples})
        return self.plans.plan(
            n_rows,
            self._n_samples(n_samples),
            kind,
            step.context,
            step.interventions,
            step.loras,
            apart=apart,
            kv=step.kv,
            masked=step.masked,
            watermark=step.watermark,
        )

    def _captured(self, done: Collected) -> Captured | None:
        readback_slot = done.readback_slot
        recorded = readback_slot.recorded
        if recorded.capture is None:
            return None
        routings = recorded.capture.routings
        return parse_captured(
            done.data[recorded.sample_bytes :],
            self.config,
            bucket=recorded.key.rows,
            n_rows=len(readback_slot.step.rows),
            entropy_stride=recorded.capture.entropies.shape[1],
            routing_stride=routings.expert_ids.shape[1] if routings else 0,
            times=done.times,
        )


def open_device(options: LoadOptions, checked: bool | None, progress: Progress) -> Device:
    """Return the open device of `options`, with the kernels that they ask for."""
    device = Device.open(options.adapter, checked=checked)
    if options.autotune:
        device = load_tuning(device, progress)
    if options.activations != "auto":
        q8 = options.activations == "q8"
        device = replace(device, tuning=replace(device.tuning, q8_activations=q8))
    return device


def _offload(model: Decoder, memory: DeviceMemory) -> ExpertOffload | None:
    """Return the offload of a model whose experts are not all on the device, else None."""
    moes = model.moes
    if model.config.experts is None or all(moe.is_resident for moe in moes.values()):
        return None
    return ExpertOffload(memory, moes, model.config.experts.experts_per_token)
