"""Interface of what runs one stage of a model: a thread of this process or another process."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from gpu.config import ModelConfig, Stage
from gpu.info import DeviceInfo, RunnerLimits
from gpu.load_options import LoadOptions
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.step import Step, StepResult

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StageOutput:
    """A step that a stage has done: its result after those of the stages before, of which only the
    last has `sent`. `failure`: why the step goes no further."""

    results: tuple[StepResult, ...] = ()
    failure: BaseException | None = None


class OutputQueue:
    """Outputs of a stage in the order of the steps. Any number of threads may put and get."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[StageOutput] = queue.SimpleQueue()
        self._last: StageOutput | None = None

    def put(self, output: StageOutput) -> None:
        self._queue.put(output)

    def end(self, failure: BaseException) -> None:
        """End the queue, if it has not ended: after the outputs in it, every `get` returns this
        failure."""
        if self._last is None:
            self._last = StageOutput(failure=failure)
            self._queue.put(self._last)

    def get(self) -> StageOutput:
        """Return the next output; wait for it."""
        output = self._queue.get()
        if output is self._last:
            self._queue.put(output)
        return output

    def empty(self) -> bool:
        return self._queue.empty()


@dataclass(frozen=True, slots=True)
class StagedModel:
    """A model to load in stages. `options`: those of the whole model; `checked`: see
    `gpu.webgpu.device.Device.open`."""

    folder: Path
    config: ModelConfig
    stages: Sequence[Stage]
    options: LoadOptions
    checked: bool | None


@dataclass(frozen=True, slots=True)
class StageDescription:
    """Description of a loaded stage; see `gpu.runner.Runner`."""

    limits: RunnerLimits
    device: DeviceInfo
    conversion: str
    activations: str

    @classmethod
    def of(cls, runner: WgpuRunner) -> StageDescription:
        return cls(runner.limits, runner.device, runner.conversion, runner.activations)


class StageWorker(Protocol):
    """Runs one stage. It carries out what it is given in that order, while its caller goes on.

    Functions of its runner may have to travel to another process, so they must be importable by
    name: those of `operator` (`methodcaller`, `attrgetter`) and `partial` of a module's functions.

    done  the steps that are done, in order, of the last stage; of others it may stay empty. Every
          step that is submitted gets here, also if it fails
    """

    done: OutputQueue

    @property
    def description(self) -> StageDescription: ...

    def call(self, function: Callable[[WgpuRunner], T]) -> T:
        """Return what a function of the runner returns. Raises what it raises."""
        ...

    def tell(self, function: Callable[[WgpuRunner], None]) -> None:
        """Have a function of the runner run, and return at once. If it fails, so do the next
        steps."""
        ...

    def warm_up(self, interventions: bool) -> bool:
        """Compile one more kernel as `Runner.warm_up` does; return False if there is none left."""
        ...

    def submit(self, step: Step) -> None:
        """Submit a step, which the stages before have got too."""
        ...

    def close(self) -> None:
        """End the stage after all that it was given to do."""
        ...
