"""Lost runs that wait for an engine while those before them hold every thread that resumes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.replicas import engine as replicated
from app.replicas.engine import ReplicatedEngine
from app.replicas.run import ReplicaRun
from gpu import Request
from gpu.events import Accepted, Queued
from tests.app.replicas.mortal import MortalEngine, Written, wait_ready

PROMPT = [9, 8, 7] * 4


class Lost:
    """Two paused runs on one replica that has died; one thread resumes. `now`: the time, in
    seconds."""

    def __init__(self, folder: Path) -> None:
        self.now = 0.0
        self.replica = MortalEngine(folder)
        self.engine = ReplicatedEngine([self.replica])
        self.texts = Written(), Written()
        self.runs: list[ReplicaRun] = []

    def begin(self) -> None:
        self.engine.start()
        wait_ready(self.replica)
        for text in self.texts:
            self.runs.append(self.engine.submit(Request(PROMPT, pace=0.0), text))
            text.until(lambda event: isinstance(event, Accepted))
        self.replica.die()

    def wait_resumed(self) -> None:
        """Wait until every lost run has had its turn."""
        self.engine._resumers.submit(lambda: None).result()


@pytest.fixture
def lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lost]:
    monkeypatch.setattr(replicated, "N_RESUMERS", 1)
    monkeypatch.setattr(replicated, "RETRY_SECONDS", 0.002)
    lost = Lost(tmp_path)
    monkeypatch.setattr(replicated, "time", SimpleNamespace(monotonic=lambda: lost.now))
    lost.begin()
    yield lost
    lost.engine.close()


def test_a_run_waits_no_longer_because_others_wait_before_it(lost: Lost) -> None:
    lost.now = replicated.RESUME_SECONDS + 1
    for text in lost.texts:
        assert text.wait_done().reason == "error"


def test_a_cancelled_run_ends_before_its_turn_and_once(lost: Lost) -> None:
    lost.runs[1].cancel()
    assert lost.texts[1].wait_done().reason == "cancelled"
    lost.replica.revive()
    lost.texts[0].until(lambda event: isinstance(event, Queued))
    lost.wait_resumed()
    lost.runs[1].cancel()
    assert lost.texts[1].is_silent
    assert len(lost.replica.requests) == 3, "the other one went on"


def test_a_run_that_is_cancelled_in_its_turn_begins_nowhere(
    lost: Lost, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = lost.engine._order

    def cancel_first(request: Request) -> list[int]:
        numbers = order(request)
        if numbers:
            for run in lost.runs:
                run.cancel()
        return numbers

    monkeypatch.setattr(lost.engine, "_order", cancel_first)
    lost.replica.revive()
    for text in lost.texts:
        assert text.wait_done().reason == "cancelled"
    lost.wait_resumed()
    assert len(lost.replica.requests) == 2
    assert all(text.is_silent for text in lost.texts)
