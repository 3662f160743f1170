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
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from gpu.runners.wgpu_runner import WgpuRunner
from gpu.step import Span, Step, StepResult

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StageOutput:
    """A step that a stage has done: its result after those of the stages before. `failure`: why the
    step goes no further."""

    results: tuple[StepResult, ...] = ()
    failure: BaseException | None = None


@dataclass(frozen=True, slots=True)
class _InFlight:
    """A submitted step. `began`: when, by `time.perf_counter`."""

    passed: StageOutput
    began: float


@dataclass(frozen=True, slots=True)
class _Call:
    function: Callable[[], Any]
    done: Future[Any]


_Command = Step | _Call | None
"""None: end."""


class StageThread:
    """Runs the steps of one stage; the rows come from `before`, the thread of the stage before.

    done  the steps that are done, in order, for the next stage; every step that is submitted gets
          here, also if it fails
    """

    def __init__(self, name: str, before: StageThread | None = None) -> None:
        self.done: queue.SimpleQueue[StageOutput] = queue.SimpleQueue()
        self._before = before
        self._runner: WgpuRunner | None = None
        self._failure: BaseException | None = None
        self._commands: queue.SimpleQueue[_Command] = queue.SimpleQueue()
        self._peeked: list[_Command] = []
        self._in_flight: deque[_InFlight] = deque()
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

    def load(self, make: Callable[[], WgpuRunner]) -> None:
        """Make the runner on the thread. Raises what `make` raises."""

        def load() -> None:
            self._runner = make()

        self.run(load)

    def run(self, function: Callable[[], T]) -> T:
        """Run a function on the thread, after what it was told before; return its result."""
        done: Future[T] = Future()
        self._commands.put(_Call(function, done))
        return done.result()

    def call(self, function: Callable[[WgpuRunner], T]) -> T:
        """Run a function of the runner on the thread."""
        return self.run(lambda: function(self.runner))

    def tell(self, function: Callable[[WgpuRunner], None]) -> None:
        """Have a function of the runner run on the thread, and return at once. If it fails, so do
        the next steps."""
        done: Future[None] = Future()
        done.add_done_callback(self._told)
        self._commands.put(_Call(lambda: function(self.runner), done))

    def submit(self, step: Step) -> None:
        """Submit a step; it gets into `done`."""
        self._commands.put(step)

    def close(self) -> None:
        """End the thread after all it was told, and close the runner."""
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
        return has_room and (self._before is None or not self._before.done.empty())

    def _submit(self, step: Step) -> None:
        passed = StageOutput() if self._before is None else self._before.done.get()
        failure = passed.failure or self._failure
        if failure is None:
            try:
                began = time.perf_counter()
                received = passed.results[-1].sent if passed.results else None
                self.runner.submit(step, received)
            except Exception as error:
                failure = self._failure = error
        if failure is None:
            self._in_flight.append(_InFlight(passed, began))
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
        self.done.put(StageOutput((*oldest.passed.results, result)))

    def _told(self, done: Future[None]) -> None:
        self._failure = self._failure or done.exception()


def _carry_out(call: _Call) -> None:
    try:
        result = call.function()
    except BaseException as error:
        call.done.set_exception(error)
    else:
        call.done.set_result(result)
