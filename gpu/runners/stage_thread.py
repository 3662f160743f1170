"""Thread of one stage of a model, which alone uses the stage's device.

It carries out commands in the order in which they came, so a change of a slot or a block acts
between the same two steps on every stage, whenever each of them gets there. A step waits for the
rows of the stage before. If the next command can be carried out already, it is, so that the device
has work when a step ends; if not, the oldest step is read and its rows go on.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from gpu.runners.stage_worker import OutputQueue, StageDescription, StageOutput
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.step import Span, Step, StepResult

T = TypeVar("T")

DONE = object()


@dataclass(frozen=True, slots=True)
class _InFlight:
    """A submitted step, and the results of the stages before. `began`: when, by
    `time.perf_counter`."""

    passed: tuple[StepResult, ...]
    began: float


@dataclass(frozen=True, slots=True)
class _Call:
    function: Callable[[], Any]
    done: Future[Any]


_Command = Step | _Call | None
"""None: end."""


class StageThread:
    """Runs the steps of one stage. Implements `gpu.runners.stage_worker.StageWorker`.

    before  outputs of the stage before; None for the first one
    """

    def __init__(self, name: str, before: OutputQueue | None = None) -> None:
        self.done = OutputQueue()
        self._before = before
        self._runner: WgpuRunner | None = None
        self._failure: BaseException | None = None
        self._commands: queue.SimpleQueue[_Command] = queue.SimpleQueue()
        self._peeked: list[_Command] = []
        self._in_flight: deque[_InFlight] = deque()
        self._kernels: dict[bool, Iterator[None]] = {}  # to compile, without and with interventions
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    @property
    def runner(self) -> WgpuRunner:
        """The stage's runner. Other threads may read its description only: no method of it."""
        assert self._runner is not None, "the stage is not loaded"
        return self._runner

    @property
    def is_loaded(self) -> bool:
        return self._runner is not None

    @property
    def description(self) -> StageDescription:
        return StageDescription.of(self.runner)

    def start(self, function: Callable[[], T]) -> Future[T]:
        """Have a function run on the thread, after those before it."""
        done: Future[T] = Future()
        self._commands.put(_Call(function, done))
        return done

    def start_load(self, make: Callable[[], WgpuRunner]) -> Future[StageDescription]:
        """Have the runner made on the thread."""

        def load() -> StageDescription:
            self._runner = make()
            return self.description

        return self.start(load)

    def start_warm_up(self, interventions: bool) -> Future[bool]:
        """Have the thread do what `warm_up` does."""
        return self.start(partial(self._warm_up, interventions))

    def call(self, function: Callable[[WgpuRunner], T]) -> T:
        return self.start(lambda: function(self.runner)).result()

    def tell(self, function: Callable[[WgpuRunner], None]) -> None:
        self.start(lambda: function(self.runner)).add_done_callback(self._told)

    def warm_up(self, interventions: bool) -> bool:
        return self.start_warm_up(interventions).result()

    def submit(self, step: Step) -> None:
        self._commands.put(step)

    def close(self) -> None:
        """End the thread after all that it was given to do, and close the runner."""
        self._commands.put(None)
        self._thread.join()

    # ---- on the thread ----------------------------------------------------------------------

    def _main(self) -> None:
        while True:
            if self._in_flight and not self._is_next_there():
                self._collect()
                continue
            command = self._peeked.pop() if self._peeked else self._commands.get()
            if command is None:
                break
            if isinstance(command, Step):
                self._submit(command)
            else:
                _carry_out(command)
        while self._in_flight:
            self._collect()
        if self._runner is not None:
            self._runner.close()

    def _is_next_there(self) -> bool:
        """Return whether the next command can be carried out without waiting for another stage."""
        if not self._peeked:
            try:
                self._peeked.append(self._commands.get_nowait())
            except queue.Empty:
                return False
        if not isinstance(self._peeked[0], Step):
            return True
        has_room = len(self._in_flight) < self.runner.in_flight
        return has_room and (self._before is None or not self._before.empty())

    def _submit(self, step: Step) -> None:
        passed = StageOutput() if self._before is None else self._before.get()
        failure = passed.failure or self._failure
        if failure is None:
            try:
                began = time.perf_counter()
                received = passed.results[-1].sent if passed.results else None
                self.runner.submit(step, received)
            except Exception as error:
                failure = self._failure = error
        if failure is None:
            kept = tuple(replace(result, sent=None) for result in passed.results)
            self._in_flight.append(_InFlight(kept, began))
            return
        while self._in_flight:
            self._collect()
        self.done.put(StageOutput(failure=failure))

    def _collect(self) -> None:
        """Read the oldest step and pass it on."""
        oldest = self._in_flight.popleft()
        try:
            result = self.runner.collect()
        except Exception as error:
            self._failure = error
            self.done.put(StageOutput(failure=error))
            return
        span = Span(oldest.began * 1e3, time.perf_counter() * 1e3)
        result = replace(result, stage_spans=(span,))
        self.done.put(StageOutput((*oldest.passed, result)))

    def _warm_up(self, interventions: bool) -> bool:
        if interventions not in self._kernels:
            self._kernels[interventions] = self.runner.warm_up(interventions=interventions)
        return next(self._kernels[interventions], DONE) is not DONE

    def _told(self, done: Future[None]) -> None:
        self._failure = self._failure or done.exception()


def _carry_out(call: _Call) -> None:
    try:
        result = call.function()
    except BaseException as error:
        call.done.set_exception(error)
    else:
        call.done.set_result(result)
