"""An engine as one of several servers uses it."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import Future

from app.engine_client import Engine, EngineRun, OnEvent
from gpu import EngineInfo, EngineStats, Request
from gpu.events import Done, Event
from gpu.inspection.requests import Answer, Question

ASKERS_OF_A_LINK = 1 << 32


class SharedEngine:
    """An engine as one of its connections uses it: closing it ends the runs of that one."""

    def __init__(self, engine: Engine, link: int) -> None:
        self._engine = engine
        self._link = link
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._runs: dict[int, EngineRun | None] = {}
        """Runs that have not ended; None: one that is being submitted."""

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    @property
    def failure(self) -> str | None:
        return self._engine.failure

    @property
    def busy_since(self) -> float | None:
        return self._engine.busy_since

    @property
    def stats(self) -> EngineStats:
        return self._engine.stats

    def submit(self, request: Request, on_event: OnEvent) -> EngineRun:
        number = next(self._numbers)
        self._runs[number] = None

        def receive(event: Event) -> None:
            if isinstance(event, Done):
                self._forget(number)
            on_event(event)

        try:
            run = self._engine.submit(request, receive)
        except BaseException:
            self._forget(number)
            raise
        with self._lock:
            if number in self._runs:  # else it has ended already
                self._runs[number] = run
        return run

    def _forget(self, number: int) -> None:
        with self._lock:
            self._runs.pop(number, None)

    def inspect(self, question: Question, asker: int = 0) -> Future[Answer]:
        return self._engine.inspect(question, self._asker(asker))

    def cancel_questions(self, asker: int) -> None:
        self._engine.cancel_questions(self._asker(asker))

    def close(self) -> None:
        with self._lock:
            runs = [run for run in self._runs.values() if run is not None]
        for run in runs:
            run.cancel()

    def _asker(self, asker: int) -> int:
        """Return a number that no asker of another connection has."""
        return self._link * ASKERS_OF_A_LINK + asker
