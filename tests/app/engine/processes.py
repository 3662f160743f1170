"""Engines in processes of their own, as tests start, await, kill and freeze them."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from app.engine.backoff import RestartPolicy
from app.engine.heartbeat import Timeouts
from app.engine.supervisor import SupervisedEngine
from app.engine_client import Engine, Progress
from app.processes.parent import end_with_parent
from app.protocol.messages import Status
from gpu.events import Done, Event
from tests.app.fake_engine import loader
from tests.app.fake_tokenizer import FakeTokenizer
from tests.app.page import PATIENCE_S

IDS = [0, 262]
ROOT = Path(__file__).parents[3]
StartEngine = Callable[..., SupervisedEngine]


@pytest.fixture
def start_engine() -> Iterator[StartEngine]:
    engines: list[SupervisedEngine] = []

    def start(
        load: Any = None,
        timeouts: Timeouts | None = None,
        restart_policy: RestartPolicy | None = None,
        **options: Any,
    ) -> SupervisedEngine:
        engine = SupervisedEngine(
            load or loader(**{"delay": 0.002, **options}),
            FakeTokenizer(),
            timeouts=timeouts,
            restart_policy=restart_policy,
        )
        engines.append(engine)
        engine.start()
        return engine

    yield start
    for engine in engines:
        engine.close()


def load_unkillable(progress: Progress) -> Engine:
    """Load the fake engine in a process that only the tests kill."""
    end_with_parent(ends=False)
    return loader()(progress)


def wait_for(engine: SupervisedEngine, *states: str) -> Status:
    deadline = time.monotonic() + PATIENCE_S
    while engine.status.state not in states:
        assert time.monotonic() < deadline, engine.status
        time.sleep(0.01)
    return engine.status


def collect(events: queue.SimpleQueue[Event], to: type[Event] = Done) -> list[Event]:
    """Return the next events of one run, up to the first `to`; by default to its end."""
    found = [events.get(timeout=10)]
    while not isinstance(found[-1], to):
        found.append(events.get(timeout=10))
    return found


def has_exited(pid: int) -> bool:
    """Return whether the process has ended, be it as a zombie that its parent has not reaped."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_exited(pid: int, seconds: float = 8.0) -> None:
    deadline = time.monotonic() + seconds
    while not has_exited(pid):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.02)


def assert_ends_with_server(code: str, folder: Path) -> None:
    """Run a server that writes the id of a process that it started to the file `pid`, and is killed
    then; assert that the process ends, too."""
    script = folder / "killed.py"
    script.write_text(code)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    server = subprocess.run([sys.executable, script], env=environment, cwd=folder)
    pid = int((folder / "pid").read_text())
    try:
        assert server.returncode == -signal.SIGKILL
        wait_exited(pid, PATIENCE_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def engine_pids(server: int) -> list[int]:
    """Return the ids of a server's engine processes: its children that Python spawned."""
    found: list[int] = []
    for task in os.listdir(f"/proc/{server}/task"):
        with open(f"/proc/{server}/task/{task}/children") as children:
            found += [int(child) for child in children.read().split()]
    return [pid for pid in found if b"spawn_main" in _command(pid)]


def _command(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as command:
            return command.read()
    except OSError:
        return b""


def pid_of(engine: SupervisedEngine) -> int:
    """Return the id of the engine's process, once it is ready."""
    wait_for(engine, "ready")
    assert engine.pid is not None
    return engine.pid


def kill(engine: SupervisedEngine) -> int:
    pid = pid_of(engine)
    os.kill(pid, signal.SIGKILL)
    return pid


def freeze(engine: SupervisedEngine) -> int:
    pid = pid_of(engine)
    os.kill(pid, signal.SIGSTOP)
    return pid


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    began = time.monotonic()
    yield
    took = time.monotonic() - began
    assert took < seconds, f"it took {took:.1f} s"
