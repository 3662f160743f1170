"""Parts run in processes of their own: one that crashes, hangs or fails is noted and the rest goes
on. The processes here are small scripts that speak the same protocol."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from gpu.bench.machine import child, conductor
from gpu.bench.machine.conductor import Conductor, Limits
from gpu.bench.machine.context import Context, Outcome
from gpu.bench.machine.messages import CaseProgress, DeviceReady, Done, Message
from gpu.bench.machine.results import PARTS, Report, Result
from gpu.webgpu.device import Device
from tests.gpu.bench.machine.made_reports import made_report, right

HEAD = """
import json, os, sys, time
order = json.loads(sys.stdin.readline())
def say(**message): print(json.dumps(message), flush=True)
def done(name, status="ok", note=""):
    say(type="done", result={"name": name, "status": status, "note": note})
say(type="begun", cases=["a", "b", "c"])
for name in "abc":
    if name in order["done"]: continue
    say(type="at", case=name)
"""
"""A process with the cases a, b and c; what follows is the body of the loop."""

Make = Callable[..., Conductor]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def made(body: str, report: Report | None = None, **changes: object) -> Conductor:
        script = tmp_path / "script.py"
        script.write_text(HEAD + "\n".join(f"    {line}" for line in body.splitlines()), "utf-8")
        report = report or made_report()
        lines: list[str] = []
        found = Conductor(
            report, "0", 60.0, lambda: None, lines.append, command=[sys.executable, str(script)]
        )
        for name, value in changes.items():
            setattr(found, name, value)
        return found

    return made


class Clock:
    """Stands in for `time` of the conductor, and hears its lines. It goes on by a second at every
    look, but only while case b runs: the start of a process takes no time."""

    def __init__(self) -> None:
        self._now = 100.0
        self._last_line = ""

    def tell(self, line: str) -> None:
        self._last_line = line

    def perf_counter(self) -> float:
        self._now += ", now b" in self._last_line
        return self._now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(conductor, "time", clock)
    monkeypatch.setattr(conductor, "PROGRESS_S", -1.0)  # every message is told
    return clock


def statuses(made: Conductor, part: str = "ops") -> dict[str, str]:
    return {result.name: result.status for result in made.report.part(part).results}


def note(made: Conductor, case: str) -> str:
    return next(r.note for r in made.report.part("ops").results if r.name == case)


def test_a_part_that_runs_through(make: Make) -> None:
    made = make("done(name)")
    made.run(["ops"])
    assert statuses(made) == {"a": "ok", "b": "ok", "c": "ok"}
    assert made.report.part("ops").is_finished
    assert made.report.seconds > 0


def test_a_crash_is_noted_and_the_rest_goes_on(make: Make) -> None:
    made = make(
        "if name == 'b':\n"
        "    print('the driver said this', file=sys.stderr, flush=True)\n"
        "    os.abort()\n"
        "done(name)"
    )
    made.run(["ops", "models"])
    assert statuses(made) == {"a": "ok", "b": "crashed", "c": "ok"}
    assert "the driver said this" in note(made, "b")
    assert sys.platform == "win32" or "SIGABRT" in note(made, "b")
    assert statuses(made, "models") == statuses(made)


def test_a_hang_is_ended_and_the_rest_goes_on(make: Make, clock: Clock) -> None:
    body = "if name == 'b': time.sleep(60)\ndone(name)"
    made = make(body, limits=Limits(silent=1.5), tell=clock.tell)
    began = time.perf_counter()
    made.run(["ops"])
    assert time.perf_counter() - began < 20
    assert statuses(made) == {"a": "ok", "b": "crashed", "c": "ok"}
    assert note(made, "b") == "it gave no sign for 1.5 s"


def test_a_process_that_does_not_end_in_time_leaves_its_case_to_the_next_run(
    make: Make, clock: Clock
) -> None:
    body = "done(name) if name == 'a' else time.sleep(60)"
    made = make(body, limits=Limits(late=0.5), tell=clock.tell, seconds=1.0)
    made.run(["peers"])
    assert statuses(made, "peers") == {"a": "ok", "b": "pending", "c": "pending"}
    assert made.report.left(["peers"]) == ["peers"]


def test_a_process_that_goes_on_and_on_is_ended_too(make: Make, clock: Clock) -> None:
    body = "while name == 'b':\n    say(type='at', case='b', doing='more')\n    time.sleep(0.01)"
    made = make(f"{body}\ndone(name)", limits=Limits(late=0.5), tell=clock.tell, seconds=1.0)
    began = time.perf_counter()
    made.run(["peers"])
    assert time.perf_counter() - began < 10
    assert statuses(made, "peers") == {"a": "ok", "b": "pending", "c": "pending"}


def test_a_case_with_an_error_gets_a_new_process_for_the_rest(make: Make) -> None:
    made = make(
        "if name == 'b':\n    done(name, 'failed', 'the device was lost')\n    sys.exit(75)\n"
        "done(name, note=str(os.getpid()))"
    )
    made.run(["ops"])
    assert statuses(made) == {"a": "ok", "b": "failed", "c": "ok"}
    assert note(made, "a") != note(made, "c")


def test_a_driver_that_fails_again_and_again_is_not_tried_for_ever(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu.bench.machine.conductor.MOST_STARTS", 2)
    made = make("os.abort()")
    made.run(["ops"])
    assert statuses(made) == {"a": "crashed", "b": "crashed", "c": "pending"}
    assert "2 processes of this part crashed" in note(made, "c")


def test_a_process_that_does_not_start_is_noted_once_and_tried_by_the_next_run(make: Make) -> None:
    made = make("pass", command=[sys.executable, "-c", "raise SystemExit('no device')"])
    made.run(["ops"])
    assert statuses(made) == {"start": "crashed"}
    assert "no device" in note(made, "start")
    assert not made.report.part("ops").is_finished
    made = make("done(name)", made.report)
    made.run(["ops"])
    assert statuses(made) == {"a": "ok", "b": "ok", "c": "ok"}


def test_the_next_run_does_only_what_is_not_done(make: Make) -> None:
    report = made_report(
        ops=[right("a"), Result("b", "pending", note="the time was up")],
        models=[right("a"), right("b"), Result("c", "left out", note="too large")],
    )
    made = make("done(name, note='second')", report)
    made.run(["ops", "models"])
    assert [note(made, case) for case in "abc"] == ["", "second", "second"]
    assert statuses(made, "models") == {"a": "ok", "b": "ok", "c": "left out"}


def test_ctrl_c_ends_the_process_and_keeps_what_was_done(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = tmp_path / "pid"
    made = make(
        f"if name == 'b':\n    with open({str(pid)!r}, 'w') as file: file.write(str(os.getpid()))\n"
        "    say(type='at', case='b', doing='more')\n    time.sleep(60)\ndone(name)"
    )

    def interrupt() -> None:
        if statuses(made) and pid.exists() and pid.read_text():
            raise KeyboardInterrupt

    made.keep = interrupt
    monkeypatch.setattr("gpu.bench.machine.conductor.PROGRESS_S", 0.0)
    with pytest.raises(KeyboardInterrupt):
        made.run(["ops"])
    assert statuses(made) == {"a": "ok"}
    if Path("/proc/self").exists():
        assert not Path(f"/proc/{pid.read_text()}").exists()


def test_time_that_a_part_does_not_use_goes_to_the_later_ones(make: Make) -> None:
    made = make("done(name, note=str(order['seconds']))", seconds=100.0)
    made.run()
    seconds = {part: float(made.report.part(part).results[0].note) for part in PARTS}
    assert 15 < seconds["ops"] < 25
    assert seconds["peers"] > 90


# ---- the process itself ----------------------------------------------------------------------


def ran(cases: dict[str, Callable[[], Outcome]], seconds: float, device: Device) -> list[Message]:
    said: list[Message] = []
    context = Context(device, "0", time.perf_counter() + seconds)
    child.run(iter(cases.items()), ["done"], context, said.append)
    return said


def test_a_process_says_what_it_does(device: Device) -> None:
    cases = {"done": lambda: Outcome({}), "a": lambda: Outcome({"x": 1.0}, "wrong", "no")}
    said = ran(cases, 60, device)
    assert said[0] == DeviceReady(["done", "a"])
    assert said[1] == CaseProgress("a")
    assert isinstance(said[2], Done)
    result = said[2].result
    assert (result.name, result.status, result.figures, result.note) == (
        "a",
        "wrong",
        {"x": 1.0},
        "no",
    )
    for message in said:
        assert msgspec.json.decode(msgspec.json.encode(message), type=Message) == message


def test_a_process_ends_after_an_error(device: Device) -> None:
    def fail() -> Outcome:
        raise RuntimeError("device lost")

    said = ran({"a": fail, "b": lambda: Outcome({})}, 60, device)
    assert isinstance(said[-1], Done)
    assert said[-1].result.status == "failed"
    assert said[-1].result.note == "RuntimeError: device lost"


def test_cases_wait_for_the_next_run_when_the_time_is_up(device: Device) -> None:
    said = ran({"a": lambda: Outcome({})}, 0, device)
    assert isinstance(said[-1], Done)
    assert said[-1].result.status == "pending"
