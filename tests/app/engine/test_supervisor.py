"""The engine's process: typed messages, supervision, and an end that leaves no orphans."""

from __future__ import annotations

import functools
import gc
import os
import queue
import signal
import threading
import time
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import pytest

from app.engine.backoff import Backoff, RestartPolicy
from app.engine.child import ending
from app.engine.handle import EngineHandle
from app.engine.pipe import CallFailed, call_failed, error_of
from app.engine.supervisor import SupervisedEngine
from app.engine_client import LostRun, ReplicaStatus, ServedModel, UnavailableError
from app.protocol.messages import Hello, Status
from gpu import (
    ContextExceeded,
    DeviceError,
    EngineClosed,
    EngineError,
    InvalidRequest,
    QueueFull,
    Request,
    SamplingParams,
)
from gpu.events import Accepted, Done, Event, Token, Updated
from gpu.pace import LEAST_PACE, PaceChange
from tests.app.conftest import StartSite
from tests.app.engine.processes import (
    IDS,
    StartEngine,
    collect,
    engine_pids,
    kill,
    pid_of,
    wait_exited,
    wait_for,
)
from tests.app.fake_engine import FakeEngine, loader
from tests.app.fake_options import ENDLESS, FakeOptions
from tests.app.fake_tokenizer import FakeTokenizer
from tests.app.page import PATIENCE_S, wait_until


def test_a_run_in_the_process(start_engine: StartEngine) -> None:
    engine = start_engine()
    wait_for(engine, "ready")
    assert engine.pid != os.getpid()
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    params = SamplingParams(temperature=0, max_tokens=20, seed=2**64 - 1)
    engine.submit(Request(IDS, params, capture=True), events.put)
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


class SlowToSubmit(FakeEngine):
    """Engine that carries out no request before a file exists."""

    gate = Path()

    def submit(self, *args: Any) -> Any:
        while not self.gate.exists():
            time.sleep(0.01)
        return super().submit(*args)


def load_slow_to_submit(gate: Path, progress: Any) -> FakeEngine:
    engine = SlowToSubmit(FakeOptions(n_slots=1, context=ENDLESS))
    engine.gate = gate
    return engine


def test_a_request_that_was_given_up_holds_no_place(
    start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    engine = start_engine(load=functools.partial(load_slow_to_submit, gate))
    wait_for(engine, "ready")
    with monkeypatch.context() as patch:
        patch.setattr("app.engine.handle.CALL_SECONDS", 0.1)
        with pytest.raises(UnavailableError, match="did not answer within"):
            engine.submit(Request(IDS, SamplingParams(max_tokens=ENDLESS)), print)
    gate.touch()
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    engine.submit(Request(IDS, SamplingParams(max_tokens=3)), events.put)
    assert sum(isinstance(event, Token) for event in collect(events)) == 3


def test_update_and_cancel_reach_the_run(start_engine: StartEngine) -> None:
    engine = start_engine(delay=0.01)
    wait_for(engine, "ready")
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    run = engine.submit(Request(IDS, SamplingParams(max_tokens=500), pace=LEAST_PACE), events.put)
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
    message = call_failed(5, error)
    assert isinstance(message, CallFailed)
    back = error_of(message)
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert back.__dict__ == error.__dict__


def test_refusals_come_through_the_pipe(start_engine: StartEngine) -> None:
    engine = start_engine(n_slots=1, queue=0)
    wait_for(engine, "ready")
    with pytest.raises(ContextExceeded, match="512"):
        engine.submit(Request([0] * 600, SamplingParams()), print)
    with pytest.raises(InvalidRequest):
        engine.submit(Request([10**6], SamplingParams()), print)
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    engine.submit(Request(IDS, SamplingParams(max_tokens=400), pace=LEAST_PACE), events.put)
    with pytest.raises(QueueFull):
        engine.submit(Request(IDS, SamplingParams()), print)


def test_a_killed_process_ends_its_runs_and_is_replaced(start_engine: StartEngine) -> None:
    engine = start_engine(delay=0.01, reused=1)
    states: list[str] = []
    engine.listen(lambda status, hello: states.append(status.state))
    wait_for(engine, "ready")
    pid = engine.pid
    assert pid is not None
    runs = [queue.SimpleQueue[Event]() for _ in range(3)]
    for events in runs:
        run = engine.submit(Request(IDS, SamplingParams(max_tokens=400), pace=0), events.put)
        run.update(pace=PaceChange(steps=3))
    begun = [[event for _ in range(3) for event in collect(events, Token)] for events in runs]
    os.kill(pid, signal.SIGKILL)
    for events, found in zip(runs, begun, strict=True):
        found += collect(events)
        done = found[-1]
        assert isinstance(done, Done)
        assert done.reason == "error"
        assert done.message == "the engine stopped"
        assert done.completion_tokens == sum(isinstance(event, Token) for event in found) == 3
        assert done.timings.predicted_per_second == pytest.approx(1e3 / done.timings.tpot_ms)
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
    engine.submit(Request(IDS, SamplingParams(max_tokens=3)), events.put)
    done = collect(events)[-1]
    assert isinstance(done, Done)
    assert done.reason == "length"


def test_a_listener_that_fails_ends_no_engine(
    start_engine: StartEngine, caplog: pytest.LogCaptureFixture
) -> None:
    """Those after it hear every state, and the process is still replaced."""
    engine = start_engine()
    pid = pid_of(engine)

    def fail(status: Status, hello: Hello | None) -> None:
        if status.state != "ready":
            raise OSError("nobody reads this")

    engine.listen(fail)
    states: list[str] = []
    engine.listen(lambda status, hello: states.append(status.state))
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: "restarting" in states and states[-1] == "ready")
    assert "nobody reads this" in caplog.text


def test_requests_during_a_restart_are_refused(start_engine: StartEngine, tmp_path: Path) -> None:
    loads = tmp_path / "loads"
    engine = start_engine(loads_after=loads)
    with pytest.raises(UnavailableError, match="loading"):
        engine.submit(Request(IDS, SamplingParams()), print)
    loads.touch()
    wait_for(engine, "ready")
    loads.unlink()
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)
    wait_for(engine, "restarting")
    with pytest.raises(UnavailableError, match="restarting"):
        engine.submit(Request(IDS, SamplingParams()), print)


@pytest.mark.slow
def test_a_process_that_keeps_dying_is_tried_again_later(start_engine: StartEngine) -> None:
    """Each pause is twice the one before; the state counts the seconds and says why."""
    engine = start_engine(restart_policy=RestartPolicy(at_once=1))
    pauses: list[int] = []
    for _ in range(3):
        wait_for(engine, "ready")
        heard: list[Status] = []
        unlisten = engine.listen(lambda status, hello, heard=heard: heard.append(status))  # type: ignore[misc]
        kill(engine)
        wait_for(engine, "restarting")
        wait_for(engine, "ready")
        unlisten()
        waiting = [status for status in heard if status.retry_seconds is not None]
        pauses.append(len({status.retry_seconds for status in waiting}))
        if waiting:
            assert "SIGKILL" in waiting[0].message
            assert waiting[0].message.endswith(f"trying again in {pauses[-1]} s")
            assert waiting[-1].message.endswith("trying again in 1 s")
    assert pauses == [0, 1, 2]


def test_requests_during_the_backoff_are_told_when_to_retry(start_engine: StartEngine) -> None:
    engine = start_engine(restart_policy=RestartPolicy(at_once=0, first=60))
    wait_for(engine, "ready")
    kill(engine)
    wait_for(engine, "restarting")
    with pytest.raises(UnavailableError, match=r"1 times in a row .*trying again in \d+ s"):
        engine.submit(Request(IDS, SamplingParams()), print)
    began = time.monotonic()
    engine.close()
    assert time.monotonic() - began < 5, "it does not wait for the next try"


def test_a_process_that_is_gone_has_no_figures(start_engine: StartEngine) -> None:
    """Its texts are not written any more, and /metrics would add them to those of other engines."""
    engine = start_engine(restart_policy=RestartPolicy(at_once=0, first=60))
    wait_for(engine, "ready")
    wait_until(lambda: engine.stats)
    kill(engine)
    wait_for(engine, "restarting")
    wait_until(lambda: engine.stats is None, 10)
    assert engine.replica_status() == ReplicaStatus("restarting")


@pytest.mark.slow
def test_another_model_does_not_wait_for_the_next_try(start_engine: StartEngine) -> None:
    engine = start_engine(restart_policy=RestartPolicy(at_once=0, first=60))
    wait_for(engine, "ready")
    kill(engine)
    wait_for(engine, "restarting")
    engine.switch(ServedModel(loader(delay=0.002), FakeTokenizer(), None))
    wait_for(engine, "ready")
    kill(engine)
    assert "stopped 1 times" in wait_for(engine, "restarting").message, "its deaths are its own"


def test_the_next_try_of_the_model_before_is_no_state_of_another(
    start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The seconds to it are counted while the process of the model before is closed."""
    engine = start_engine(restart_policy=RestartPolicy(at_once=0, first=60))
    wait_for(engine, "ready")
    kill(engine)
    while engine.status.retry_seconds is None:
        time.sleep(0.01)
    close = EngineHandle.close

    def close_late(handle: EngineHandle) -> None:
        time.sleep(1.5)
        close(handle)

    monkeypatch.setattr(EngineHandle, "close", close_late)
    states: list[str] = []
    unlisten = engine.listen(lambda status, hello: states.append(status.state))
    engine.switch(ServedModel(loader(), FakeTokenizer(), None))
    wait_for(engine, "ready")
    unlisten()
    assert "restarting" not in states[states.index("loading") :], states


@pytest.mark.slow
def test_a_first_model_that_only_dies_is_given_up(start_engine: StartEngine) -> None:
    """`serve` can then end and print why; nobody has waited for the engine yet."""
    engine = start_engine(load=_crash, restart_policy=RestartPolicy(at_once=1))
    status = wait_for(engine, "failed")
    assert "2 times" in status.message
    assert "exit code 7" in status.message


def _crash(progress: Any) -> FakeEngine:
    os._exit(7)


def test_a_process_that_was_steady_is_started_again_at_once() -> None:
    backoff = Backoff(RestartPolicy(at_once=2, first=1, longest=60, steady=60))
    assert [backoff.crashed(1.0) for _ in range(10)] == [0, 0, 1, 2, 4, 8, 16, 32, 60, 60]
    assert backoff.crashed(59.0) == 60
    assert backoff.crashed(60.0) == 0
    assert [backoff.crashed(0.0) for _ in range(2000)][-1] == 60


def test_a_process_that_cannot_be_started_is_tried_again(
    start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine may have no descriptors or processes left; those already taken are given back."""
    engine = start_engine()
    wait_for(engine, "ready")
    tries = []

    def refuse(process: object) -> None:
        tries.append(process)
        if len(tries) < 3:
            raise OSError(24, "Too many open files")
        start(process)

    start = SpawnProcess.start
    monkeypatch.setattr(SpawnProcess, "start", refuse)
    kill(engine)
    wait_for(engine, "restarting")
    wait_for(engine, "ready")
    assert len(tries) == 3


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="counts in /proc")
def test_descriptors_and_threads_of_a_dead_process_are_freed_at_once(
    start_engine: StartEngine,
) -> None:
    """Its pipe, its exit descriptor and the threads that serve it do not wait for the garbage
    collector."""
    gc.collect()  # what tests before this one left open
    engine = start_engine(restart_policy=RestartPolicy(at_once=1000))
    held: list[tuple[int, int]] = []
    for _ in range(3):
        wait_for(engine, "ready")
        held.append((len(os.listdir("/proc/self/fd")), threading.active_count()))
        kill(engine)
        wait_for(engine, "restarting")
    wait_for(engine, "ready")
    held.append((len(os.listdir("/proc/self/fd")), threading.active_count()))
    descriptors, threads = zip(*held, strict=True)
    # Fewer are no fault: threads of earlier tests may still be ending.
    assert (max(descriptors), max(threads)) == held[0], held


N_SWITCHES = 50


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="counts in /proc")
def test_fifty_changes_of_the_model_leave_nothing(start_engine: StartEngine) -> None:
    """Each model has a process of its own, which takes its memory along, the GPU's as well."""
    gc.collect()
    engine = start_engine()
    pids = {pid_of(engine)}
    held: list[tuple[int, int]] = []
    for _ in range(N_SWITCHES):
        engine.switch(ServedModel(loader(), FakeTokenizer(), None))
        pids.add(pid_of(engine))
        held.append((len(os.listdir("/proc/self/fd")), threading.active_count()))
    assert len(pids) == 1 + N_SWITCHES
    assert engine_pids(os.getpid()) == [engine.pid]
    descriptors, threads = zip(*held, strict=True)
    assert (max(descriptors), max(threads)) == held[0], held


def test_an_engine_that_lost_its_gpu_is_restarted(
    start_engine: StartEngine, tmp_path: Path
) -> None:
    """A lost GPU may come back; one that was never there fails at once."""
    gone = tmp_path / "gone"
    load = functools.partial(_load_on_a_gpu, gone)
    engine = start_engine(load=load, restart_policy=RestartPolicy(at_once=1, longest=1))
    statuses: queue.SimpleQueue[Status] = queue.SimpleQueue()
    engine.listen(lambda status, hello: statuses.put(status))
    wait_for(engine, "ready")
    gone.touch()
    kill(engine)
    while "no GPU was found" not in (status := statuses.get(timeout=PATIENCE_S)).message:
        pass
    assert status.state == "restarting"
    gone.unlink()
    wait_for(engine, "ready")
    gone.touch()
    other = start_engine(load=load)
    assert wait_for(other, "failed").message == "no GPU was found"


def _load_on_a_gpu(gone: Path, progress: Any) -> FakeEngine:
    if gone.exists():
        raise DeviceError("no GPU was found")
    return FakeEngine(FakeOptions(delay=0.002))


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
    engine.submit(Request(IDS, SamplingParams()), events.put)
    done = collect(events)[-1]
    assert isinstance(done, LostRun), "another engine may go on with it"
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
    engine.submit(Request(IDS, SamplingParams(max_tokens=400)), events.put)
    engine.close()
    assert isinstance(collect(events)[-1], Done)
    wait_exited(pid)


def test_closing_while_loading(start_engine: StartEngine) -> None:
    engine = start_engine(load_seconds=1.0)
    deadline = time.monotonic() + 10
    while engine.pid is None and time.monotonic() < deadline:
        time.sleep(0.01)
    pid = engine.pid
    assert pid is not None
    engine.close()
    wait_exited(pid)


def test_the_exit_of_a_process_is_described_in_words() -> None:
    assert ending(3) == "exit code 3"
    assert ending(-signal.SIGABRT) == "signal SIGABRT"
    assert ending(-250) == "signal 250"
    assert ending(None) == "closing its pipe"


def test_the_page_sees_the_restart_and_can_go_on(start_site: StartSite) -> None:
    site = start_site(process=True, delay=0.1)  # 40 seconds for the text
    page = site.page()
    page.send_message("generate", id="a", prompt="Once", params={"max_tokens": 400})
    page.until("token", index=3)
    assert isinstance(site.engine, SupervisedEngine)
    assert site.engine.pid is not None
    os.kill(site.engine.pid, signal.SIGKILL)
    page.until("status", state="restarting")
    page.until("hello")
    page.until("status", state="ready")
    page.send_message("resume", id="a")
    done = page.until("done", id="a")
    assert done["reason"] == "error"
    assert done["completion_tokens"] >= 4
    page.send_message("generate", id="b", prompt="Once", params={"max_tokens": 3})
    assert page.until("done", id="b")["reason"] == "length"
