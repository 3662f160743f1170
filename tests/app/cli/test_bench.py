"""`tokenglass bench`: what a person types, reads and sends."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from app import version
from app.cli import bench
from app.cli.main import main
from gpu import AdapterInfo, DeviceError
from gpu.bench.machine import Machine, Report, store
from tests.gpu.bench.machine.made_reports import CARD, made_report, right
from tests.serving import ROOT

OTHER = replace(CARD, name="NVIDIA GeForce RTX 4090", driver="550")


def run(*args: object) -> Result:
    return CliRunner().invoke(main, ["bench", *map(str, args)])


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Two GPUs, and reports that are not measured; the arguments of each."""
    calls: list[tuple[Any, ...]] = []

    def make(path: Path, machine: Machine, adapter: int, minutes: float, tell: Any) -> Report:
        calls.append((path, machine, adapter, minutes))
        tell("measuring")
        return made_report(ops=[right("a")])

    monkeypatch.setattr(bench, "devices", lambda: [CARD, OTHER])
    monkeypatch.setattr(bench, "make_report", make)
    return calls


def test_the_report_is_of_the_chosen_adapter_and_says_what_doctor_says(
    made: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    result = run("--report", tmp_path / "r.json", "--minutes", 3, "--adapter", "4090")
    assert result.exit_code == 0, result.output
    ((path, machine, adapter, minutes),) = made
    assert (path, adapter, minutes) == (tmp_path / "r.json", 1, 3)
    assert machine.adapter == OTHER
    assert machine.tokenglass == version()
    assert {"wgpu", "wgpu-native", "numpy"} <= set(machine.versions)
    assert any(choice.name == "attention" and choice.reason for choice in machine.policy)
    lines = result.output.splitlines()
    assert lines[0].startswith("NVIDIA GeForce RTX 4090 (550), at most 3 minutes, to ")
    assert "measuring" in lines
    assert "no failures" in lines
    assert lines[-2].startswith("not finished: models, ")
    assert "paste" in lines[-1]
    assert str(tmp_path / "r.md") in lines[-1]


def test_without_a_name_the_file_is_named_after_the_adapter(made: list[tuple[Any, ...]]) -> None:
    run("--adapter", 1)
    run()
    assert [str(call[0]) for call in made] == [
        "tokenglass-nvidia-geforce-rtx-4090.json", "tokenglass-a-card-of-mine.json",
    ]  # fmt: skip
    assert made[1][2:] == (0, 10)
    odd = replace(CARD, name="(TM)")
    assert str(bench.default_path(odd)) == "tokenglass-report.json"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--minutes", "0"], "0.5<=x<=600"),
        (["--minutes", "x"], "not a valid float"),
        (["--minutes", "nan"], "nan is not a finite number"),
        (["--report", "no/such/folder/r.json"], "there is no folder no/such/folder"),
        (["--report", "r.md"], "the report is JSON"),
        (["--report", "."], "is a folder"),
        (["--adapter", "nothing like it", "--report", "r.json"], "no adapter matches"),
    ],
)
def test_bad_arguments_get_one_clear_line(
    args: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench, "devices", lambda: [CARD, OTHER])
    result = run(*args)
    assert result.exit_code in (1, 2)
    assert message in result.output
    assert "Traceback" not in result.output
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_no_report_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "devices", lambda: [CARD])
    path = tmp_path / "package.json"
    path.write_text("{}", "utf-8")
    result = run("--report", path)
    assert result.exit_code == 2
    assert "is there but is not a report" in result.output
    assert path.read_text("utf-8") == "{}"


def test_a_machine_without_adapters_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench, "devices", list)
    result = run()
    assert result.exit_code == 1
    assert "no adapter was found; install a Vulkan driver" in result.output
    with pytest.raises(DeviceError, match="there are: 0: A card"):
        bench.choose([CARD], "2")


def test_failures_and_what_to_do_are_said_at_the_end(tmp_path: Path) -> None:
    report = made_report(ops=[right("a")])
    assert bench.last_lines(Path("r.json"), report)[0] == "no failures"
    bad = right("b")
    report.parts["ops"].add(type(bad)("b", "wrong"))
    assert bench.last_lines(Path("r.json"), report)[0] == "1 failure, see r.md"


def choices() -> list[tuple[str | None, int]]:
    return [(None, 0), ("", 0), ("1", 1), ("nvidia", 1), ("driver 1", 0), ("4090", 1)]


@pytest.mark.parametrize(("wanted", "number"), choices())
def test_adapters_are_chosen_as_everywhere(wanted: str | None, number: int) -> None:
    found: list[AdapterInfo] = [CARD, OTHER]
    assert bench.choose(found, wanted) == (number, found[number])


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
def test_ctrl_c_leaves_a_report_that_the_next_run_continues(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    command = [sys.executable, "-m", "app", "bench", "--report", str(path), "--minutes", "5"]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A shell that runs the tests in the background has them ignore Ctrl+C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        time.sleep(0.2)
        report = store.read(path)
        if report is not None and report.parts.get("ops") and report.part("ops").results:
            break
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=20)
    assert process.returncode == 130, output
    assert "stopped" in output
    assert "Traceback" not in output
    report = store.read(path)
    assert report is not None
    done = report.part("ops").done
    assert done
    assert all(result.status == "ok" for result in report.part("ops").results)
    assert "Not finished: " in (tmp_path / "r.md").read_text("utf-8")
    same, about = store.begin(path, report.machine, "now")
    assert same.part("ops").done == done
    assert about.startswith("continuing")
