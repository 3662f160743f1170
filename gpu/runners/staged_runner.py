"""A model in stages, each on a device of its own.

A stage has the weights, the KV cache and the statistics of its layers, with the same numbers of
slots and blocks as every other, so the engine knows one block manager. Rows of the residual stream
travel from stage to stage through the host. Stages work at the same time on different steps: while
one has rows of some texts, the one before has those of others (Huang et al. 2019, "GPipe"). Every
number is that of one device, to the bit: rows are handed on as they are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from gpu.checkpoint.reader import Checkpoint, Progress, weight_progress
from gpu.checkpoint.weight_cache import AddedElsewhere, WeightCache, open_weight_cache
from gpu.config import ModelConfig, Stage, cut_stages
from gpu.info import DeviceInfo, LoraInfo, MemoryInfo, StageInfo
from gpu.interventions.active import NONE_ACTIVE, ActiveInterventions
from gpu.kv.copies import TokenMove
from gpu.load_options import DEFAULT_OPTIONS, LoadOptions
from gpu.plans.report_builder import join_reports
from gpu.runners.loaded_model import StagePart, shape_kv_cache
from gpu.runners.stage_thread import StageThread
from gpu.runners.staged_results import join_inspected, join_results
from gpu.runners.wgpu_runner import WgpuRunner, open_device
from gpu.step import (
    FROM_GPU,
    Floats,
    InspectionRequest,
    InspectionResult,
    Row,
    Step,
    StepResult,
)
from gpu.webgpu.device import Device

DONE = object()


class StagedRunner:
    """A model whose stages run on a device each. Implements `gpu.runner.Runner`."""

    loras: tuple[LoraInfo, ...] = ()

    def __init__(
        self, config: ModelConfig, stages: Sequence[Stage], threads: Sequence[StageThread]
    ) -> None:
        """`threads`: one of each stage, loaded."""
        self.config = config
        self._stages = stages
        self._threads = threads
        *self._before, self._last = threads
        runners = [thread.runner for thread in threads]
        self.limits = replace(
            runners[0].limits,
            max_rows=min(runner.limits.max_rows for runner in runners),
            max_captured_rows=min(runner.limits.max_captured_rows for runner in runners),
            n_stages=len(stages),
        )
        self.in_flight = len(stages) + 1  # one waits at the first stage
        self.device = _describe_devices([runner.device for runner in runners])
        self.conversion = "; ".join(dict.fromkeys(r.conversion for r in runners if r.conversion))
        self._in_flight: deque[Step] = deque()
        self._collected: deque[StepResult] = deque()
        self._chosen: dict[int, int] = {}  # the token that each slot sampled last

    @classmethod
    def load(
        cls,
        folder: Path,
        options: LoadOptions = DEFAULT_OPTIONS,
        *,
        checked: bool | None = None,
        progress: Progress = lambda fraction, message: None,
    ) -> StagedRunner:
        """Open the devices and load a stage of a model folder onto each. Raises ModelError and
        DeviceError."""
        config = ModelConfig.from_folder(folder)
        stages = cut_stages(config.n_layers, options.pipeline_parallel_size)
        threads: list[StageThread] = []
        devices: list[Device] = []
        try:
            for i, _ in enumerate(stages):
                threads.append(StageThread(f"stage {i}", threads[-1] if threads else None))
                own = replace(options, adapter=options.adapter_of_stage(i))
                devices.append(threads[-1].run(partial(open_device, own, checked, progress)))
            _load_stages(folder, config, options, stages, threads, devices, progress)
        except BaseException:
            unused = [d for t, d in zip(threads, devices, strict=False) if not t.is_loaded]
            _close(threads)
            for device in unused:
                device.close()
            raise
        return cls(config, stages, threads)

    @property
    def stages(self) -> tuple[StageInfo, ...]:
        return tuple(
            StageInfo(
                stage.first, len(stage.layers), thread.runner.device.name, thread.runner.memory
            )
            for stage, thread in zip(self._stages, self._threads, strict=True)
        )

    @property
    def memory(self) -> MemoryInfo:
        of_stages = [thread.runner.memory for thread in self._threads]
        return MemoryInfo(
            weights=sum(memory.weights for memory in of_stages),
            kv_cache=sum(memory.kv_cache for memory in of_stages),
            work=sum(memory.work for memory in of_stages),
        )

    @property
    def dispatches_per_token(self) -> int:
        return sum(thread.call(lambda r: r.dispatches_per_token) for thread in self._threads)

    @property
    def activations(self) -> str:
        return "q8" if any(t.runner.activations == "q8" for t in self._threads) else "f32"

    # ---- what the stages are told -----------------------------------------------------------
    # Each stage gets there later: it must not see what the caller changes meanwhile.

    def begin_slot(self, slot: int, tokens: npt.NDArray[np.uint32], n_written: int = 0) -> None:
        for thread in self._before:
            thread.tell(lambda runner: runner.set_interventions(slot, None))
        self._last.tell(lambda runner: runner.begin_slot(slot, tokens, n_written))

    def set_text(self, slot: int, tokens: npt.NDArray[np.uint32], n_written: int) -> None:
        self._last.tell(lambda runner: runner.set_text(slot, tokens, n_written))

    def set_allowed(self, slot: int, mask: npt.NDArray[np.uint32]) -> None:
        mask = mask.copy()
        self._last.tell(lambda runner: runner.set_allowed(slot, mask))

    def set_blocks(self, slot: int, blocks: list[int], group: int = 0) -> None:
        blocks = list(blocks)
        self._tell_all(lambda runner: runner.set_blocks(slot, blocks, group))

    def copy_block(self, source: int, destination: int) -> None:
        self._tell_all(lambda runner: runner.copy_block(source, destination))

    def store_block(self, block: int, place: int) -> None:
        self._tell_all(lambda runner: runner.store_block(block, place))

    def load_block(self, place: int, block: int) -> None:
        self._tell_all(lambda runner: runner.load_block(place, block))

    def move_tokens(self, moves: Sequence[TokenMove], group: int = 0) -> None:
        moves = tuple(moves)
        self._tell_all(lambda runner: runner.move_tokens(moves, group))

    def set_interventions(self, slot: int, active: ActiveInterventions | None) -> None:
        active = active or NONE_ACTIVE
        active.validate(self.config)
        for stage, thread in zip(self._stages, self._threads, strict=True):
            thread.tell(_interventions_setter(slot, active.of_stage(stage)))

    def _tell_all(self, function: Callable[[WgpuRunner], None]) -> None:
        for thread in self._threads:
            thread.tell(function)

    # ---- steps ------------------------------------------------------------------------------

    def submit(self, step: Step) -> None:
        """Submit a step. If the token of a row is still being sampled, wait for it; so steps
        overlap only if they have rows of different sequences."""
        step = self._with_tokens(step)
        self._in_flight.append(step)
        for thread in self._threads:
            thread.submit(step)

    def collect(self) -> StepResult:
        return self._collected.popleft() if self._collected else self._wait()

    def _wait(self) -> StepResult:
        """Wait for the oldest step. Raises what a stage raised."""
        passed = self._last.done.get()
        step = self._in_flight.popleft()
        if passed.failure is not None:
            raise passed.failure
        result = join_results(passed.results, self._stages)
        for sample, sampled in zip(step.samples, result.samples, strict=True):
            if not sample.verifies:
                self._chosen[sample.slot] = sampled.id
        return result

    def _with_tokens(self, step: Step) -> Step:
        """Return a step with the ids of tokens that the last stage has sampled: the first stage,
        which embeds them, is another device."""
        if all(row.token != FROM_GPU for row in step.rows):
            return step
        return replace(step, rows=tuple(self._with_token(row) for row in step.rows))

    def _with_token(self, row: Row) -> Row:
        if row.token != FROM_GPU:
            return row
        while self._is_sampling(row.slot):
            self._collected.append(self._wait())
        return replace(row, token=self._chosen[row.slot])

    def _is_sampling(self, slot: int) -> bool:
        samples = (sample for step in self._in_flight for sample in step.samples)
        return any(sample.slot == slot and not sample.verifies for sample in samples)

    # ---- while no steps are in flight -------------------------------------------------------

    def logits(self, step: Step) -> Floats:
        *_, (_, received) = self._received(step)
        return self._last.call(lambda runner: runner.logits(step, received))

    def inspect(self, step: Step, request: InspectionRequest) -> InspectionResult:
        request.validate(step, self.limits.context)
        of_stage = replace(request, lens=False, states=request.states or request.lens)
        found = []
        for thread, received in self._received(step):
            own = _own_request(of_stage, thread.runner)
            found.append(thread.run(partial(thread.runner.inspect, step, own, received)))
        joined = join_inspected(found)
        if not request.lens:
            return joined
        assert joined.states is not None
        states = joined.states[step.samples[0].row]
        lens = self._last.call(lambda runner: runner.unembed(states))
        return replace(joined, lens=lens, states=joined.states if request.states else None)

    def profile(self, step: Step, repeat: int) -> Floats | None:
        times = []
        for thread, received in self._received(step):
            found = thread.run(partial(thread.runner.profile, step, repeat, received))
            if found is None:
                return None
            times.append(found)
        return np.concatenate(times)

    def _received(self, step: Step) -> Iterator[tuple[StageThread, Floats | None]]:
        """Yield every stage with what it receives of a step; the stages before have run it."""
        own = replace(step, samples=(), capture=False)
        received: Floats | None = None
        for thread in self._before:
            yield thread, received
            received = thread.run(partial(_run_stage, thread.runner, own, received))
        yield self._last, received

    def list_plan(self, n_rows: int, context: int) -> dict[str, Any] | None:
        reports = [
            thread.call(lambda r: r.report_plan(n_rows, context)) for thread in self._threads
        ]
        plan: dict[str, Any] = msgspec.to_builtins(join_reports(reports))
        return plan

    def peaks(self) -> dict[str, float]:
        """Return the speed of the slowest device in each respect."""
        found = [thread.call(lambda runner: runner.peaks()) for thread in self._threads]
        return {name: min(peaks[name] for peaks in found) for name in found[0]}

    def warm_up(self, *, interventions: bool = False) -> Iterator[None]:
        for thread in self._threads:
            kernels = thread.call(lambda runner: runner.warm_up(interventions=interventions))
            while thread.run(partial(next, kernels, DONE)) is not DONE:
                yield

    def close(self) -> None:
        _close(self._threads)


def _load_stages(
    folder: Path,
    config: ModelConfig,
    options: LoadOptions,
    stages: Sequence[Stage],
    threads: Sequence[StageThread],
    devices: Sequence[Device],
    progress: Progress,
) -> None:
    """Load each stage on its thread, one after the other: they read the same files."""
    checkpoint = Checkpoint.open(folder)
    binding = min(device.max_binding_bytes for device in devices)
    kv_shape = shape_kv_cache(config, options, binding)
    on_weights = weight_progress(progress, checkpoint, config.tie_embeddings)
    cache = open_weight_cache(checkpoint, config, options.dtype, options.weight_cache_bytes)
    with cache as weight_cache:
        for stage, thread, device in zip(stages, threads, devices, strict=True):
            own_cache = _cache_of_stage(weight_cache, stage)

            def make(
                stage: Stage = stage, device: Device = device, own: WeightCache = own_cache
            ) -> WgpuRunner:
                return WgpuRunner(
                    device,
                    config,
                    checkpoint,
                    options,
                    on_weights=on_weights,
                    weight_cache=own,
                    part=StagePart(stage, kv_shape),
                )

            thread.load(make)


def _cache_of_stage(cache: WeightCache, stage: Stage) -> WeightCache:
    """Return the cache for a stage: a tied embedding is added by the first stage only."""
    return cache if stage.is_first else AddedElsewhere(cache, "embedding")


def _run_stage(runner: WgpuRunner, step: Step, received: Floats | None) -> Floats:
    """Return what a stage sends."""
    runner.submit(step, received)
    sent = runner.collect().sent
    assert sent is not None
    return sent


def _interventions_setter(slot: int, active: ActiveInterventions) -> Callable[[WgpuRunner], None]:
    return lambda runner: runner.set_interventions(slot, active)


def _own_request(request: InspectionRequest, runner: WgpuRunner) -> InspectionRequest:
    """Return what a stage can give of a request."""
    has_routes = runner.config.experts is None or bool(runner.config.expert_layers)
    return replace(
        request,
        routes=request.routes and has_routes,
        last_hidden=request.last_hidden and runner.stage.is_last,
    )


def _describe_devices(devices: Sequence[DeviceInfo]) -> DeviceInfo:
    """Return one description; features are those that all devices have."""

    def both(values: Iterator[str]) -> str:
        return " + ".join(dict.fromkeys(values))

    features = tuple(f for f in devices[0].features if all(f in d.features for d in devices))
    return DeviceInfo(
        name=f"{len(devices)} × {both(device.name for device in devices)}",
        driver=both(device.driver for device in devices),
        backend=both(device.backend for device in devices),
        kind=both(device.kind for device in devices),
        software=any(device.software for device in devices),
        features=features,
        lacks=tuple(dict.fromkeys(lack for device in devices for lack in device.lacks)),
    )


def _close(threads: Sequence[StageThread]) -> None:
    for thread in threads:
        thread.close()
