"""A model in stages, each on a device of its own: of this process, or of one for each stage.

A stage has the weights, the KV cache and the statistics of its layers, with the same numbers of
slots and blocks as every other, so the engine knows one block manager. Rows of the residual stream
travel from stage to stage through the hosts. Stages work at the same time on different steps: while
one has rows of some texts, the one before has those of others (Huang et al. 2019, "GPipe"). Every
number is that of one device, to the bit: rows are handed on as they are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter, methodcaller
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from gpu.checkpoint.open_model import open_model
from gpu.checkpoint.reader import Progress
from gpu.config import ModelConfig, Stage, cut_stages
from gpu.info import DeviceInfo, LoraInfo, MemoryInfo, StageInfo
from gpu.interventions.active import NONE_ACTIVE, ActiveInterventions
from gpu.kv.copies import TokenMove
from gpu.load_options import DEFAULT_OPTIONS, LoadOptions
from gpu.plans.report_builder import join_reports
from gpu.runners.local_stages import load_local_stages
from gpu.runners.remote_stages import load_remote_stages
from gpu.runners.stage_worker import StagedModel, StageWorker
from gpu.runners.staged_results import join_inspected, join_results
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.stage_hosts import StageHosts
from gpu.step import (
    FROM_GPU,
    Floats,
    InspectionRequest,
    InspectionResult,
    Row,
    Selfhash,
    Step,
    StepResult,
)


class StagedRunner:
    """A model whose stages run on a device each. Implements `gpu.runner.Runner`."""

    loras: tuple[LoraInfo, ...] = ()

    def __init__(
        self,
        config: ModelConfig,
        stages: Sequence[Stage],
        workers: Sequence[StageWorker],
        on_closed: Callable[[], None] = lambda: None,
    ) -> None:
        """`workers`: one of each stage, loaded."""
        self.config = config
        self._stages = stages
        self._workers = workers
        self._on_closed = on_closed
        *self._before, self._last = workers
        self._descriptions = descriptions = [worker.description for worker in workers]
        self.limits = replace(
            descriptions[0].limits,
            max_rows=min(d.limits.max_rows for d in descriptions),
            max_captured_rows=min(d.limits.max_captured_rows for d in descriptions),
            n_stages=len(stages),
        )
        self.in_flight = len(stages) + 1  # one waits at the first stage
        self.device = _describe_devices([d.device for d in descriptions])
        self.conversion = "; ".join(
            dict.fromkeys(d.conversion for d in descriptions if d.conversion)
        )
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
        hosts: StageHosts | None = None,
    ) -> StagedRunner:
        """Open the devices and load a stage of a model folder onto each. `hosts`: processes for the
        stages; None: they run in this one. Raises ModelError and DeviceError."""
        config, _ = open_model(folder)
        stages = cut_stages(config.n_layers, options.pipeline_parallel_size)
        model = StagedModel(folder, config, stages, options, checked)
        if hosts is None:
            return cls(config, stages, load_local_stages(model, progress))
        return cls(config, stages, load_remote_stages(model, hosts, progress), hosts.end)

    @property
    def stages(self) -> tuple[StageInfo, ...]:
        return tuple(
            StageInfo(stage.first, len(stage.layers), description.device.name, memory)
            for stage, description, memory in zip(
                self._stages, self._descriptions, self._memories(), strict=True
            )
        )

    @property
    def memory(self) -> MemoryInfo:
        memories = self._memories()
        return MemoryInfo(
            weights=sum(memory.weights for memory in memories),
            kv_cache=sum(memory.kv_cache for memory in memories),
            work=sum(memory.work for memory in memories),
        )

    def _memories(self) -> list[MemoryInfo]:
        return [worker.call(attrgetter("memory")) for worker in self._workers]

    @property
    def dispatches_per_token(self) -> int:
        return sum(worker.call(attrgetter("dispatches_per_token")) for worker in self._workers)

    @property
    def activations(self) -> str:
        return "q8" if any(d.activations == "q8" for d in self._descriptions) else "f32"

    # ---- what the stages are sent -----------------------------------------------------------
    # Each stage gets there later: it must not see what the caller changes meanwhile.

    def begin_slot(self, slot: int, tokens: npt.NDArray[np.uint32], n_written: int = 0) -> None:
        for worker in self._before:
            worker.tell(methodcaller("set_interventions", slot, None))
        self._last.tell(methodcaller("begin_slot", slot, tokens, n_written))

    def set_text(self, slot: int, tokens: npt.NDArray[np.uint32], n_written: int) -> None:
        self._last.tell(methodcaller("set_text", slot, tokens, n_written))

    def set_grammar_bitmask(self, slot: int, bitmask: npt.NDArray[np.uint32]) -> None:
        self._last.tell(methodcaller("set_grammar_bitmask", slot, bitmask.copy()))

    def set_greenlist(self, slot: int, bitmask: npt.NDArray[np.uint32]) -> None:
        self._last.tell(methodcaller("set_greenlist", slot, bitmask.copy()))

    def set_selfhash(self, slot: int, selfhash: Selfhash) -> None:
        self._last.tell(methodcaller("set_selfhash", slot, selfhash))

    def set_blocks(self, slot: int, blocks: list[int], group: int = 0) -> None:
        self._tell_all(methodcaller("set_blocks", slot, list(blocks), group))

    def copy_block(self, source: int, destination: int) -> None:
        self._tell_all(methodcaller("copy_block", source, destination))

    def store_block(self, block: int, place: int) -> None:
        self._tell_all(methodcaller("store_block", block, place))

    def load_block(self, place: int, block: int) -> None:
        self._tell_all(methodcaller("load_block", place, block))

    def shift_kv(self, moves: Sequence[TokenMove], group: int = 0) -> None:
        self._tell_all(methodcaller("shift_kv", tuple(moves), group))

    def set_interventions(self, slot: int, active: ActiveInterventions | None) -> None:
        active = active or NONE_ACTIVE
        active.validate(self.config)
        for stage, worker in zip(self._stages, self._workers, strict=True):
            worker.tell(methodcaller("set_interventions", slot, active.of_stage(stage)))

    def _tell_all(self, function: Callable[[WgpuRunner], None]) -> None:
        for worker in self._workers:
            worker.tell(function)

    # ---- steps ------------------------------------------------------------------------------

    def submit(self, step: Step) -> None:
        """Submit a step. If the token of a row is still being sampled, wait for it; so steps
        overlap only if they have rows of different sequences."""
        step = self._with_tokens(step)
        self._in_flight.append(step)
        for worker in self._workers:
            worker.submit(step)

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

    def run_checked(self, step: Step, like: Step) -> tuple[StepResult, None]:
        """Run the rows again, as always: the stages are not searched."""
        self.submit(step)
        return self.collect(), None

    # ---- while no steps are in flight -------------------------------------------------------

    def logits(self, step: Step) -> Floats:
        *_, (_, _, received) = self._received(step)
        logits: Floats = self._last.call(methodcaller("logits", step, received))
        return logits

    def inspect(self, step: Step, request: InspectionRequest) -> InspectionResult:
        request.validate(step, self.limits.context)
        of_stage = replace(request, lens=False, states=request.states or request.lens)
        found = []
        for stage, worker, received in self._received(step):
            own = _own_request(of_stage, self.config, stage)
            found.append(worker.call(methodcaller("inspect", step, own, received)))
        joined = join_inspected(found)
        if not request.lens:
            return joined
        assert joined.states is not None
        states = joined.states[step.samples[0].row]
        lens = self.unembed(states)
        return replace(joined, lens=lens, states=joined.states if request.states else None)

    def unembed(self, states: Floats) -> Floats:
        logits: Floats = self._last.call(methodcaller("unembed", states))
        return logits

    def embedding_rows(self, first: int, n: int) -> Floats:
        worker = (*self._before, self._last)[0]
        rows: Floats = worker.call(methodcaller("embedding_rows", first, n))
        return rows

    def profile(self, step: Step, repeat: int) -> Floats | None:
        times = []
        for _, worker, received in self._received(step):
            found = worker.call(methodcaller("profile", step, repeat, received))
            if found is None:
                return None
            times.append(found)
        return np.concatenate(times)

    def _received(self, step: Step) -> Iterator[tuple[Stage, StageWorker, Floats | None]]:
        """Yield every stage with what it receives of a step; the stages before have run it."""
        own = replace(step, samples=(), capture=False)
        received: Floats | None = None
        for stage, worker in zip(self._stages, self._workers, strict=True):
            yield stage, worker, received
            if not stage.is_last:
                received = worker.call(partial(_run_stage, step=own, received=received))

    def list_plan(self, n_rows: int, context: int) -> dict[str, Any] | None:
        report = methodcaller("report_plan", n_rows, context)
        reports = [worker.call(report) for worker in self._workers]
        plan: dict[str, Any] = msgspec.to_builtins(join_reports(reports))
        return plan

    def set_rope(self, *, rotates: bool, n_positions: int) -> None:
        set_rope = methodcaller("set_rope", rotates=rotates, n_positions=n_positions)
        for worker in self._workers:
            worker.call(set_rope)

    def weight_digest(self, number: int) -> tuple[bytes, int] | None:
        for worker in self._workers:
            n = worker.call(attrgetter("n_weight_tensors"))
            if number < n:
                found: tuple[bytes, int] | None = worker.call(methodcaller("weight_digest", number))
                return found
            number -= n
        return None

    def peaks(self) -> dict[str, float]:
        """Return the speed of the slowest device in each respect."""
        found = [worker.call(methodcaller("peaks")) for worker in self._workers]
        return {name: min(peaks[name] for peaks in found) for name in found[0]}

    def warm_up(self, *, interventions: bool = False) -> Iterator[None]:
        for worker in self._workers:
            while worker.warm_up(interventions):
                yield

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        self._on_closed()


def _run_stage(runner: WgpuRunner, step: Step, received: Floats | None) -> Floats:
    """Return what a stage sends."""
    runner.submit(step, received)
    sent = runner.collect().sent
    assert sent is not None
    return sent


def _own_request(
    request: InspectionRequest, config: ModelConfig, stage: Stage
) -> InspectionRequest:
    """Return what a stage can give of a request."""
    layer = request.layer
    if layer is not None:
        own = layer[0] in stage.layers
        layer = (layer[0] - stage.first, layer[1]) if own else None
    has_routes = config.experts is None or bool(stage.own(config.expert_layers))
    return replace(
        request,
        routes=request.routes and has_routes,
        last_hidden=request.last_hidden and stage.is_last,
        layer=layer,
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
