"""The process that is started early: it waits for a model while the model is fetched."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from app.engine import supervisor
from app.engine.handle import EarlyChild
from app.engine.supervisor import SupervisedEngine
from app.models.transfer import Cancelled
from gpu import ModelError
from tests.app.engine.processes import pid_of, wait_exited, wait_for
from tests.app.fake_engine import loader
from tests.app.fake_tokenizer import FakeTokenizer


class Fetching:
    """A fetch that a test ends."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.ends = threading.Event()
        self.error: Exception | None = None

    def __call__(self, *_: object) -> None:
        self.began.set()
        self.ends.wait()
        if self.error is not None:
            raise self.error


class Started:
    """An engine whose first process is started early, and its fetch. `prepared`: a file that the
    process writes its id to."""

    def __init__(self, prepared: Path) -> None:
        self.fetch = Fetching()
        self.prepared = prepared
        os.mkfifo(prepared)
        self.engine = SupervisedEngine(
            loader(delay=0.002),
            FakeTokenizer(),
            fetch=self.fetch,
            start_process=EarlyChild(partial(_write_pid, prepared)),
        )
        self.engine.start()

    def early_pid(self) -> int:
        """Return the id of the early process, once it has prepared itself."""
        return int(self.prepared.read_text())

    def close(self) -> None:
        self.fetch.ends.set()
        self.engine.close()


def _write_pid(path: Path) -> None:
    path.write_text(str(os.getpid()))


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    started = Started(tmp_path / "prepared")
    yield started
    started.close()


def test_the_early_process_loads_the_model(started: Started) -> None:
    pid = started.early_pid()
    assert not started.fetch.ends.is_set()
    assert started.engine.pid is None
    started.fetch.ends.set()
    assert pid_of(started.engine) == pid


def test_an_early_process_that_died_is_replaced(started: Started) -> None:
    pid = started.early_pid()
    os.kill(pid, signal.SIGKILL)
    wait_exited(pid)
    started.fetch.ends.set()
    assert pid_of(started.engine) != pid


@pytest.mark.parametrize("error", [Cancelled("closing"), ModelError("it is damaged")])
def test_a_process_without_a_model_ends_with_the_server(started: Started, error: Exception) -> None:
    pid = started.early_pid()
    started.fetch.error = error
    started.fetch.ends.set()
    if isinstance(error, ModelError):
        wait_for(started.engine, "failed")
    started.engine.close()
    wait_exited(pid)


def test_it_ends_with_a_server_that_cannot_wait_for_the_fetch(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "SHUTDOWN_SECONDS", 0.01)
    pid = started.early_pid()
    started.engine.close()
    assert not started.fetch.ends.is_set()
    wait_exited(pid)


def test_only_the_first_process_is_started_early(started: Started) -> None:
    first = started.early_pid()
    started.fetch.ends.set()
    assert pid_of(started.engine) == first
    os.kill(first, signal.SIGKILL)
    wait_for(started.engine, "restarting")
    assert pid_of(started.engine) != first
