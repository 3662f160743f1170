"""An engine process that is alive and does nothing is noticed, killed and replaced."""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import pytest

import app.engine.pipe_writer
from app.engine.heartbeat import Timeouts, Watchdog
from app.engine.pipe import HEARTBEAT_SECONDS
from app.engine.supervisor import SupervisedEngine
from app.engine_client import ServedModel, UnavailableError
from gpu import Request, SamplingParams
from gpu.events import Done, Event, Token
from gpu.inspection.requests import Losses
from gpu.pace import LEAST_PACE
from tests.app.conftest import Site, StartSite
from tests.app.engine.processes import (
    IDS,
    ROOT,
    StartEngine,
    assert_ends_with_server,
    collect,
    freeze,
    pid_of,
    time_limit,
    wait_exited,
    wait_for,
)
from tests.app.fake_engine import FakeEngine, loader
from tests.app.fake_options import HANGS_AT, FakeOptions
from tests.app.fake_tokenizer import FakeTokenizer
from tests.app.page import PATIENCE_S

SILENT = Timeouts(silent=2.0)
PATIENT = Timeouts(silent=600.0)
CLOSES_WITHIN_S = 10.0
HUNG_SEED = 666

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="no process can be stopped")


def begin(
    engine: SupervisedEngine, pace: float | None = None, **params: Any
) -> queue.SimpleQueue[Event]:
    """Start a run and return it after its first token."""
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    wanted = SamplingParams(**{"max_tokens": 400, **params})
    engine.submit(Request(IDS, wanted, pace=pace), events.put)
    collect(events, Token)
    return events


def test_a_frozen_process_is_replaced_and_its_texts_are_kept(
    start_engine: StartEngine,
) -> None:
    engine = start_engine(delay=0.01, timeouts=SILENT)
    wait_for(engine, "ready")
    runs = [begin(engine, LEAST_PACE) for _ in range(4)]
    pid = freeze(engine)
    with time_limit(8):
        status = wait_for(engine, "restarting")
    assert status.message == (
        "the engine stopped (it was frozen: no sign of life for 2 s) and is restarting"
    )
    wait_exited(pid)
    for events in runs:
        done = collect(events)[-1]
        assert isinstance(done, Done)
        assert (done.reason, done.message[:18]) == ("error", "the engine stopped")
        assert done.completion_tokens > 0
    assert pid_of(engine) != pid
    begin(engine)


def test_a_frozen_engine_that_is_idle_is_replaced(start_engine: StartEngine) -> None:
    engine = start_engine(timeouts=SILENT)
    pid = freeze(engine)
    wait_for(engine, "restarting")
    assert pid_of(engine) != pid


def test_a_frozen_engine_is_reported_to_pages_and_health(
    start_site: StartSite, tmp_path: Path
) -> None:
    loads = tmp_path / "loads"
    loads.touch()
    site = start_site(process=True, timeouts=SILENT, loads_after=loads)
    page = site.page()
    page.hold_slot("a")
    loads.unlink()
    freeze(_engine(site))
    told = page.until("status", state="restarting")
    assert "no sign of life" in told["message"]
    health = site.app.test_client().get("/health")
    assert health.status_code == 503
    assert health.json is not None
    assert health.json["status"] == "restarting"
    loads.touch()
    assert page.until("done", id="a")["reason"] == "error"
    page.until("status", state="ready")
    assert site.app.test_client().get("/health").status_code == 200


def _engine(site: Site) -> SupervisedEngine:
    assert isinstance(site.engine, SupervisedEngine)
    return site.engine


def test_an_engine_that_hangs_in_a_step_is_replaced(start_engine: StartEngine) -> None:
    """The process still sends heartbeats, so that only its steps show that it hangs."""
    engine = start_engine(hangs_with=HUNG_SEED, timeouts=Timeouts(step=2.0))
    pid = pid_of(engine)
    events = begin(engine, seed=HUNG_SEED)
    status = wait_for(engine, "restarting")
    assert "one step on the GPU hung: nothing happened for 2 s" in status.message
    wait_exited(pid)
    done = collect(events)[-1]
    assert isinstance(done, Done)
    assert done.completion_tokens == HANGS_AT
    pid_of(engine)
    begin(engine)


def test_a_long_step_is_waited_for(start_engine: StartEngine) -> None:
    """Compiling or a long question: heartbeats arrive, and the step is not too long yet."""
    engine = start_engine(ask_seconds=4.0, timeouts=Timeouts(silent=2.0, step=20.0))
    pid = pid_of(engine)
    assert engine.inspect(Losses(IDS)).result(20)
    assert engine.pid == pid
    assert engine.status.state == "ready"


def test_many_short_steps_do_not_count_as_one_long_step(start_engine: StartEngine) -> None:
    engine = start_engine(delay=0.02, timeouts=Timeouts(step=1.0))
    pid = pid_of(engine)
    collect(begin(engine, max_tokens=150))  # after three seconds
    assert engine.pid == pid


def _clutching(seconds: int, progress: Any) -> FakeEngine:
    _hold_the_interpreter(seconds)
    return _Clutching(FakeOptions())


class _Clutching(FakeEngine):
    def _decode(self, run: Any) -> None:
        _hold_the_interpreter(600)


def _hold_the_interpreter(seconds: int) -> None:
    """Hold the GIL: no other thread of this process runs meanwhile, since PyDLL does not release
    it."""
    ctypes.PyDLL(None).sleep(seconds)


def _clutch(progress: Any) -> FakeEngine:
    return _clutching(4, progress)


@pytest.mark.slow
def test_the_gil_may_be_held_while_loading_but_not_later(
    start_engine: StartEngine,
) -> None:
    engine = start_engine(load=_clutch, timeouts=SILENT)
    pid = pid_of(engine)
    assert engine.status.state == "ready", "it was silent for 4 s, which is no wonder then"
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    engine.submit(Request(IDS, SamplingParams()), events.put)
    assert "no sign of life" in wait_for(engine, "restarting").message
    wait_exited(pid)


def test_how_long_loading_took_does_not_count_afterwards() -> None:
    killed: queue.SimpleQueue[str] = queue.SimpleQueue()
    watchdog = Watchdog(Timeouts(step=2.0), killed.put)
    for _ in range(10):
        watchdog.heartbeat(1.0)
    watchdog.ready()
    time.sleep(2.5 * HEARTBEAT_SECONDS)
    assert killed.empty()
    for _ in range(10):
        watchdog.heartbeat(1.0)
    assert killed.get(timeout=PATIENCE_S) == "one step on the GPU hung: nothing happened for 2 s"
    watchdog.stop()
    assert killed.empty(), "it was told once"


def _stuck(progress: Any) -> FakeEngine:
    progress(0.5, "opening the device")
    threading.Event().wait()
    raise AssertionError


@pytest.mark.slow
def test_a_load_that_hangs_is_not_waited_for_for_ever(start_engine: StartEngine) -> None:
    engine = start_engine(load=_stuck, timeouts=Timeouts(progress=1.0))
    status = wait_for(engine, "restarting")
    assert "loading the model hung: nothing happened for 1 s" in status.message


def test_sending_to_a_process_that_does_not_read_does_not_block(
    start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the callers that fill its pipe are blocked, nor those that come after."""
    monkeypatch.setattr(app.engine.pipe_writer, "MAX_WAITING_BYTES", 1_000_000)
    engine = start_engine(delay=0.01, timeouts=PATIENT)
    wait_for(engine, "ready")
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    run = engine.submit(Request(IDS, SamplingParams(max_tokens=400), pace=LEAST_PACE), events.put)
    pid = freeze(engine)
    with time_limit(2), pytest.raises(UnavailableError, match="try again in a few seconds"):
        _ask_much(engine)
    with time_limit(1), pytest.raises(UnavailableError, match="try again in a few seconds"):
        run.update(stop="x" * 1_000_000)
    with time_limit(1):
        run.cancel()
    os.kill(pid, signal.SIGCONT)
    found = collect(events)
    assert isinstance(found[-1], Done)
    assert found[-1].reason == "cancelled", "what was said meanwhile arrives"
    assert engine.pid == pid


def _ask_much(engine: SupervisedEngine) -> None:
    """Send more than a pipe holds, and more than may wait for it. The engine refuses each question,
    which takes no time: there is no such token."""
    for _ in range(20):
        engine.inspect(Losses([1_000_000] * 30_000))


@pytest.mark.slow
def test_the_model_of_a_frozen_engine_can_be_switched(start_engine: StartEngine) -> None:
    engine = start_engine(timeouts=PATIENT)
    pid = freeze(engine)
    with ThreadPoolExecutor(1) as pool:
        switching = pool.submit(engine.switch, ServedModel(loader(), FakeTokenizer(), None))
        wait_exited(pid, CLOSES_WITHIN_S)
        switching.result()
    assert pid_of(engine) != pid


@pytest.mark.slow
def test_closing_a_frozen_engine_ends(start_engine: StartEngine) -> None:
    engine = start_engine(delay=0.01, timeouts=PATIENT)
    wait_for(engine, "ready")
    runs = [begin(engine, LEAST_PACE) for _ in range(4)]
    pid = freeze(engine)
    with time_limit(CLOSES_WITHIN_S):
        engine.close()
    wait_exited(pid, 0.5)
    for events in runs:
        assert isinstance(collect(events)[-1], Done)


@pytest.mark.slow
def test_a_process_that_survives_a_kill_is_left_behind(
    start_engine: StartEngine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A driver can keep a killed process in the kernel: the next one starts, and closing ends."""
    engine = start_engine(timeouts=SILENT)
    pid = freeze(engine)
    monkeypatch.setattr(SpawnProcess, "kill", lambda process: None)
    try:
        wait_for(engine, "restarting")
        other = pid_of(engine)
        assert other != pid
        os.kill(other, signal.SIGSTOP)
        with time_limit(CLOSES_WITHIN_S):
            engine.close()
        os.kill(other, signal.SIGKILL)
    finally:
        os.kill(pid, signal.SIGKILL)


KILLED_SERVER = """
import os, signal
from pathlib import Path
from app.engine.supervisor import SupervisedEngine
from tests.app.fake_engine import loader
from tests.app.fake_tokenizer import FakeTokenizer
from tests.app.engine.processes import freeze

if __name__ == "__main__":
    engine = SupervisedEngine(loader(), FakeTokenizer())
    engine.start()
    Path("pid").write_text(str(freeze(engine)))
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells processes of it")
def test_a_frozen_engine_ends_with_a_server_that_is_killed(tmp_path: Path) -> None:
    """It cannot see that its pipe has ended, and would keep the GPU's memory for ever."""
    assert_ends_with_server(KILLED_SERVER, tmp_path)


UNKILLABLE = """
from pathlib import Path
from multiprocessing.context import SpawnProcess
from app.engine.heartbeat import Timeouts
from app.engine.supervisor import SupervisedEngine
from tests.app.fake_tokenizer import FakeTokenizer
from tests.app.engine.processes import freeze, load_unkillable

if __name__ == "__main__":
    SpawnProcess.kill = lambda process: None
    engine = SupervisedEngine(load_unkillable, FakeTokenizer(), timeouts=Timeouts(close=1.0))
    engine.start()
    pid = freeze(engine)
    Path("pid").write_text(str(pid))
    engine.close()
"""


@pytest.mark.slow
def test_a_server_ends_although_its_engine_survives_the_kill(tmp_path: Path) -> None:
    """At its end Python waits for every process it has started."""
    script = tmp_path / "unkillable.py"
    script.write_text(UNKILLABLE)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    server = subprocess.Popen([sys.executable, script], env=environment, cwd=tmp_path)
    try:
        assert server.wait(30) == 0
    finally:
        server.kill()
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def test_an_engine_that_sends_garbage_counts_as_dead(
    start_engine: StartEngine,
) -> None:
    """A process whose memory is damaged may write anything."""
    engine = start_engine(load=_babbling)
    pid = pid_of(engine)
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    engine.submit(Request(IDS, SamplingParams()), events.put)
    wait_for(engine, "restarting")
    wait_exited(pid)
    pid_of(engine)


class _Babbling(FakeEngine):
    def _decode(self, run: Any) -> None:
        run.on_event("what is no event")
        self._end(run, "eos")


def _babbling(progress: Any) -> FakeEngine:
    return _Babbling(FakeOptions())
