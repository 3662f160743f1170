"""Engines in this process that die when a test says so, and come back when it says so."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from app.engine_client import EngineClient, LocalEngine, LostRun, OnEvent, Run
from app.protocol.messages import Status
from gpu import Engine, LoadOptions, Request
from gpu.events import Done, Event, Timings, Token
from gpu.inspection.requests import Answer, Question
from tests.app.page import PATIENCE_S, wait_until
from tests.gpu.engine.scripted_runner import ScriptedRunner, byte_tokenizer

NO_TIMINGS = Timings(0, 0, 0.0, 0.0, 0, 0.0, 0.0, 0.0, 0.0, 0.0)


class MortalEngine(LocalEngine):
    """An engine that writes a fixed function of the ids. `die` ends it as a crash of its process
    would: nothing more comes of its runs but that they are lost."""

    def __init__(self, folder: Path, *, queue: int = 4, **runner: Any) -> None:
        self.tokenizer_of_model = byte_tokenizer(folder)
        options = LoadOptions(queue=queue)
        runner = {"n_slots": 2, "n_blocks": 16, "context": 256, "delay": 0.002, **runner}
        super().__init__(
            lambda progress: Engine(
                lambda: ScriptedRunner(**runner), self.tokenizer_of_model, options
            ),
            self.tokenizer_of_model,
        )
        self._sinks: list[_Sink] = []
        self.requests: list[Request] = []
        self.runs: list[Any] = []
        """Runs of the requests that it took, which have `start_update`."""
        self.questions: list[Question] = []
        self.tells_ends = True
        """Whether the end of a run comes through before the engine dies."""

    def submit(self, request: Request, on_event: OnEvent) -> Run:
        self.requests.append(request)
        sink = _Sink(on_event, len(request.ids) - request.n_written, self.tells_ends)
        run = super().submit(request, sink)
        self._sinks.append(sink)
        self.runs.append(run)
        return run

    def inspect(self, question: Question, asker: int = 0) -> Future[Answer]:
        self.questions.append(question)
        return super().inspect(question, asker)

    def die(self, state: Any = "restarting") -> None:
        for sink in self._sinks:
            sink.open = False
        self._set_state(Status(state, "the engine stopped"))
        for sink in self._sinks:
            sink.lose()
        self._sinks.clear()

    def revive(self) -> None:
        self._run_load()


class _Sink:
    """Passes a run's events on until its engine dies."""

    def __init__(self, on_event: OnEvent, n_prompt: int, tells_end: bool) -> None:
        self._on_event = on_event
        self._n_prompt = n_prompt
        self._tells_end = tells_end
        self.open = True
        self.ended = False

    def __call__(self, event: Event) -> None:
        if self.open and (self._tells_end or not isinstance(event, Done)):
            self.ended = isinstance(event, Done)
            self._on_event(event)

    def lose(self) -> None:
        if not self.ended:
            self._on_event(LostRun("error", self._n_prompt, 0, NO_TIMINGS, "the engine stopped"))


class Written:
    """Receives the events of a run. At those that `stops` is true for the engine stands still until
    `go_on`: it cannot come to the end of a text before a test has done something."""

    def __init__(self, stops: Callable[[Event], bool] = lambda event: False) -> None:
        self.events: list[Event] = []
        self._new: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._stops = stops
        self._goes_on = threading.Semaphore(0)

    def __call__(self, event: Event) -> None:
        self._new.put(event)
        if self._stops(event):
            assert self._goes_on.acquire(timeout=PATIENCE_S)

    def go_on(self) -> None:
        self._goes_on.release()

    def until(self, enough: Callable[[Event], bool]) -> Event:
        """Return the next event that is `enough`."""
        while not enough(event := self._new.get(timeout=PATIENCE_S)):
            self.events.append(event)
        self.events.append(event)
        return event

    def wait_done(self) -> Done:
        done = self.until(lambda event: isinstance(event, Done))
        assert isinstance(done, Done)
        return done

    @property
    def is_silent(self) -> bool:
        """Whether nothing has come since the last `until`."""
        return self._new.empty()

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def token(*indexes: int) -> Callable[[Event], bool]:
    """Return what is true for these tokens of a text."""
    return lambda event: isinstance(event, Token) and event.index in indexes


def wait_ready(*engines: EngineClient) -> None:
    wait_until(lambda: all(engine.hello is not None for engine in engines))
