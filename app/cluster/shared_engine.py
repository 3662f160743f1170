"""An engine as one of several servers uses it."""

from __future__ import annotations

import weakref
from concurrent.futures import Future

from app.engine_client import Engine, EngineRun, OnEvent
from gpu import EngineInfo, EngineStats, Request
from gpu.inspection.requests import Answer, Question

ASKERS_OF_A_LINK = 1 << 32


class SharedEngine:
    """An engine as one of its connections uses it: closing it ends the runs of that one."""

    def __init__(self, engine: Engine, link: int) -> None:
        self._engine = engine
        self._link = link
        self._runs: weakref.WeakSet[EngineRun] = weakref.WeakSet()
        # `EngineMain` holds those that have not ended.

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
        run = self._engine.submit(request, on_event)
        self._runs.add(run)
        return run

    def inspect(self, question: Question, asker: int = 0) -> Future[Answer]:
        return self._engine.inspect(question, self._asker(asker))

    def cancel_questions(self, asker: int) -> None:
        self._engine.cancel_questions(self._asker(asker))

    def close(self) -> None:
        for run in self._runs:
            run.cancel()

    def _asker(self, asker: int) -> int:
        """Return a number that no asker of another connection has."""
        return self._link * ASKERS_OF_A_LINK + asker
