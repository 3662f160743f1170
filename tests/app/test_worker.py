"""The engine's process: typed messages, supervision, and an end that leaves no orphans."""

from __future__ import annotations

import os
import queue
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import app.worker
from app.engines import UnavailableError
from app.pipe import Refused, error_of, refused
from app.protocol import Hello, Status
from app.worker import ProcessEngine, ending
from gpu import (
    ContextExceeded,
    DeviceError,
    EngineClosed,
    EngineError,
    InvalidRequest,
    QueueFull,
    SamplingParams,
)
from gpu.events import Accepted, Done, Event, Token, Updated
from tests.app.conftest import StartSite
from tests.app.fake_engine import FakeEngine, FakeOptions, loader
from tests.app.fake_tokenizer import FakeTokenizer

IDS = [0, 262]
StartEngine = Callable[..., ProcessEngine]


@pytest.fixture
def start_engine() -> Iterator[StartEngine]:
    engines: list[ProcessEngine] = []

    def start(load: Any = None, **options: Any) -> ProcessEngine:
        engine = ProcessEngine(load or loader(**{"delay": 0.002, **options}), FakeTokenizer())
        engines.append(engine)
        engine.start()
        return engine

    yield start
    for engine in engines:
        engine.close()


def wait_for(engine: ProcessEngine, *states: str) -> Status:
    deadline = time.monotonic() + 20
    while engine.status.state not in states:
        assert time.monotonic() < deadline, engine.status
        time.sleep(0.01)
    return engine.status


def collect(events: queue.SimpleQueue[Event], to: type[Event] = Done) -> list[Event]:
    """The next events of one run, up to the first `to`; by default to its end."""
    found = [events.get(timeout=10)]
    while not isinstance(found[-1], to):
        found.append(events.get(timeout=10))
    return found


def gone(pid: int) -> bool:
    """Has the process ended? (A zombie whose parent has not looked yet has.)"""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_gone(pid: int, seconds: float = 8.0) -> None:
    deadline = time.monotonic() + seconds
    while not gone(pid):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.02)


def test_a_run_in_the_process(start_engine: StartEngine) -> None:
    engine = start_engine()
    wait_for(engine, "ready")
    assert engine.pid != os.getpid()
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    params = SamplingParams(temperature=0, max_tokens=20, seed=2**64 - 1)
    engine.submit(IDS, params, capture=True, on_event=events.put)
    found = collect(events)
    assert isinstance(found[0], Accepted)
    assert found[0].params == params
    tokens = [event for event in found if isinstance(event, Token)]
    assert [token.index for token in tokens] == list(range(20))
    assert all(token.stats is not None for token in tokens)


def test_the_hello_knows_whether_the_model_chats(start_site: StartSite) -> None:
    for template in (None, "{{ messages }}"):
        hello = start_site(process=True, chat_template=template).engine.hello
        assert isinstance(hello, Hello)
        assert hello.model.chat is (template is not None)


def test_update_and_cancel_reach_the_run(start_engine: StartEngine) -> None:
    engine = start_engine(delay=0.01)
    wait_for(engine, "ready")
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    run = engine.submit(IDS, SamplingParams(max_tokens=500), capture=False, on_event=events.put)
    index = run.update(temperature=0.25, capture=True)
    with pytest.raises(InvalidRequest) as refusal:
        run.update(top_p=7)
    assert refusal.value.param == "top_p"
    run.cancel()
    found = collect(events)
    updated = next(event for event in found if isinstance(event, Updated))
    assert (updated.index, updated.params.temperature, updated.capture) == (index, 0.25, True)
    done = found[-1]
    assert isinstance(done, Done)
    assert done.reason == "cancelled"
    with pytest.raises(EngineError):
        run.update(temperature=1)
    run.cancel()


REFUSALS: list[EngineError] = [
    InvalidRequest("no", "top_k"),
    ContextExceeded(600, 512),
    QueueFull("full"),
    EngineClosed("closed"),
    DeviceError("lost"),
    EngineError("other"),
]


@pytest.mark.parametrize("error", REFUSALS, ids=lambda error: type(error).__name__)
def test_errors_are_the_same_on_both_sides(error: EngineError) -> None:
    message = refused(5, error)
    assert isinstance(message, Refused)
    back = error_of(message)
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert back.__dict__ == error.__dict__


def test_refusals_come_through_the_pipe(start_engine: StartEngine) -> None:
    engine = start_engine(n_slots=1, queue=0)
    wait_for(engine, "ready")
    with pytest.raises(ContextExceeded, match="512"):
        engine.submit([0] * 600, SamplingParams(), capture=False, on_event=print)
    with pytest.raises(InvalidRequest):
        engine.submit([10**6], SamplingParams(), capture=False, on_event=print)
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    engine.submit(IDS, SamplingParams(max_tokens=400), capture=False, on_event=events.put)
    with pytest.raises(QueueFull):
        engine.submit(IDS, SamplingParams(), capture=False, on_event=print)


def test_a_killed_process_ends_its_runs_and_is_replaced(start_engine: StartEngine) -> None:
    engine = start_engine(delay=0.01, reused=1)
    states: list[str] = []
    engine.listen(lambda status, hello: states.append(status.state))
    wait_for(engine, "ready")
    pid = engine.pid
    assert pid is not None
    runs = [queue.SimpleQueue[Event]() for _ in range(3)]
    for events in runs:
        engine.submit(IDS, SamplingParams(max_tokens=400), capture=False, on_event=events.put)
    begun = [collect(events, Token) for events in runs]
    os.kill(pid, signal.SIGKILL)
    for events, found in zip(runs, begun, strict=True):
        found += collect(events)
        done = found[-1]
        assert isinstance(done, Done)
        assert done.reason == "error"
        assert done.message == "the engine stopped; the text so far is kept"
        assert done.completion_tokens == sum(isinstance(event, Token) for event in found) > 0
        assert (done.timings.cache_n, done.timings.prompt_n) == (1, len(IDS) - 1)
    wait_for(engine, "ready")
    assert engine.pid != pid
    assert [s for s, t in zip(states, [*states[1:], ""], strict=True) if s != t] == [
        "loading",
        "ready",
        "restarting",
        "ready",
    ]
    events = queue.SimpleQueue()
    engine.submit(IDS, SamplingParams(max_tokens=3), capture=False, on_event=events.put)
    done = collect(events)[-1]
    assert isinstance(done, Done)
    assert done.reason == "length"


def test_between_two_processes_requests_are_refused(start_engine: StartEngine) -> None:
    engine = start_engine(load_seconds=0.5)
    with pytest.raises(UnavailableError, match="loading"):
        engine.submit(IDS, SamplingParams(), capture=False, on_event=print)
    wait_for(engine, "ready")
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)
    wait_for(engine, "restarting")
    with pytest.raises(UnavailableError, match="restarting"):
        engine.submit(IDS, SamplingParams(), capture=False, on_event=print)


def test_a_process_that_keeps_dying_is_given_up(
    start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app.worker, "MAX_RESTARTS", 2)
    engine = start_engine()
    for _ in range(3):
        wait_for(engine, "ready")
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)
        wait_for(engine, "restarting", "failed")
    status = wait_for(engine, "failed")
    assert "3 times" in status.message
    assert "SIGKILL" in status.message
    with pytest.raises(UnavailableError, match="failed"):
        engine.submit(IDS, SamplingParams(), capture=False, on_event=print)


def test_deaths_long_ago_are_forgiven(
    start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app.worker, "RESTART_WINDOW_SECONDS", 0.0)
    monkeypatch.setattr(app.worker, "MAX_RESTARTS", 1)
    engine = start_engine()
    for _ in range(2):
        wait_for(engine, "ready")
        pid = engine.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_for(engine, "restarting")
    wait_for(engine, "ready")


def test_a_model_that_cannot_be_loaded_is_not_tried_again(start_engine: StartEngine) -> None:
    engine = start_engine(fail="config.json: not found")
    assert wait_for(engine, "failed").message == "config.json: not found"
    time.sleep(0.3)
    assert engine.status.state == "failed"


def _broken(progress: Any) -> FakeEngine:
    raise ZeroDivisionError("a bug while loading")


def test_a_bug_while_loading_is_a_failure_too(start_engine: StartEngine) -> None:
    engine = start_engine(load=_broken)
    assert "ZeroDivisionError" in wait_for(engine, "failed").message


class _Doomed(FakeEngine):
    """Its thread stops by itself at the first token, as a lost device makes the real one do."""

    def _decode(self, run: Any) -> None:
        self.failure = "the engine failed: the device was lost"
        self._end(run, "error")


def _doomed(progress: Any) -> FakeEngine:
    return _Doomed(FakeOptions())


def test_an_engine_that_fails_by_itself_gets_a_new_process(start_engine: StartEngine) -> None:
    engine = start_engine(load=_doomed)
    wait_for(engine, "ready")
    pid = engine.pid
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    engine.submit(IDS, SamplingParams(), capture=False, on_event=events.put)
    done = collect(events)[-1]
    assert isinstance(done, Done)
    assert done.reason == "error"
    wait_for(engine, "restarting")
    wait_for(engine, "ready")
    assert engine.pid != pid


def test_closing_ends_runs_and_process(start_engine: StartEngine) -> None:
    engine = start_engine(delay=0.01)
    wait_for(engine, "ready")
    pid = engine.pid
    assert pid is not None
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    engine.submit(IDS, SamplingParams(max_tokens=400), capture=False, on_event=events.put)
    engine.close()
    assert isinstance(collect(events)[-1], Done)
    wait_gone(pid)


def test_closing_while_loading(start_engine: StartEngine) -> None:
    engine = start_engine(load_seconds=1.0)
    deadline = time.monotonic() + 10
    while engine.pid is None and time.monotonic() < deadline:
        time.sleep(0.01)
    pid = engine.pid
    assert pid is not None
    engine.close()
    wait_gone(pid)


def test_how_a_process_ended_is_said_in_words() -> None:
    assert ending(3) == "exit code 3"
    assert ending(-signal.SIGABRT) == "signal SIGABRT"
    assert ending(-250) == "signal 250"
    assert ending(None) == "closing its pipe"


def test_the_page_sees_the_restart_and_can_go_on(start_site: StartSite) -> None:
    site = start_site(process=True, delay=0.01)
    page = site.page()
    page.tell("generate", id="a", prompt="Once", params={"max_tokens": 400})
    page.until("token", index=3)
    assert isinstance(site.engine, ProcessEngine)
    assert site.engine.pid is not None
    os.kill(site.engine.pid, signal.SIGKILL)
    page.until("status", state="restarting")
    page.until("hello")
    page.until("status", state="ready")
    page.tell("resume", id="a")
    done = page.until("done", id="a")
    assert done["reason"] == "error"
    assert done["completion_tokens"] >= 4
    page.tell("generate", id="b", prompt="Once", params={"max_tokens": 3})
    assert page.until("done", id="b")["reason"] == "length"
