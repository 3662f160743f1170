"""The file of a report is continued if it is of the same machine, never lost and never mixed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from gpu.bench.machine import engine_digest, make_report, store
from gpu.bench.machine.store import ReportFileError
from tests.gpu.bench.machine.made_reports import CARD, made_machine, made_report, right


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "r.json"


def test_a_report_is_read_back_as_it_was_written(path: Path) -> None:
    report = made_report(ops=[right("a", error=0.5)])
    store.write(path, report)
    assert store.read(path) == report
    assert (path.parent / "r.md").read_text("utf-8").startswith("# Tokenglass 0.1.0 on A card")
    assert {file.name for file in path.parent.iterdir()} == {"r.json", "r.md"}


def test_a_report_of_the_same_machine_is_continued(path: Path) -> None:
    store.write(path, made_report(ops=[right("a")]))
    machine = made_machine(host_bytes=5, platform="Linux 7")
    report, about = store.begin(path, machine, "now")
    assert about == f"continuing {path}, which has 1 results"
    assert report.part("ops").done == ["a"]
    assert report.machine == machine
    assert report.began == "2026-01-02 03:04 UTC"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"adapter": replace(CARD, name="B")}, "it is of adapter A card | of mine, and this is B"),
        ({"adapter": replace(CARD, driver="2")}, "it is of driver driver 1, and this is 2"),
        ({"engine": "new"}, "it is of engine sources abc, and this is new"),
        ({"versions": {"wgpu": "1"}}, "it is of wgpu 0.32.0, and this is 1"),
        ({"tokenglass": "2"}, "it is of tokenglass 0.1.0, and this is 2"),
    ],
)
def test_a_report_of_another_machine_is_kept_under_another_name(
    path: Path, change: dict[str, object], reason: str
) -> None:
    store.write(path, made_report(ops=[right("a")]))
    for number in (1, 2):
        report, about = store.begin(path, made_machine(**change), "now")
        kept = path.with_name(f"r.old{number}.json")
        assert about == f"starting anew: {reason}; the old report is {kept}"
        assert report.parts == {}
        assert store.read(kept) == made_report(ops=[right("a")])
        assert store.page_path(kept).exists()
        assert not path.exists()
        store.write(path, made_report(ops=[right("a")]))


@pytest.mark.parametrize(
    "contents", ["", "{", "[]", "null", '{"model": 1}', "[" * 100_000, "\0\xff" * 10]
)
def test_a_file_that_is_no_report_is_not_touched(path: Path, contents: str) -> None:
    path.write_text(contents, "utf-8")
    with pytest.raises(ReportFileError, match="is there but is not a report"):
        make_report(path, made_machine(), 0, 1.0, lambda line: None)
    assert path.read_text("utf-8") == contents


def test_a_text_with_the_name_of_the_page_is_not_touched(path: Path) -> None:
    notes = path.with_suffix(".md")
    notes.write_text("my own notes", "utf-8")
    with pytest.raises(ReportFileError, match=r"r\.md is there, and the page .* would replace it"):
        store.begin(path, made_machine(), "now")
    assert notes.read_text("utf-8") == "my own notes"


def test_a_report_of_a_later_format_is_not_touched(path: Path) -> None:
    data = json.loads(msgspec.json.encode(made_report()))
    path.write_text(json.dumps({**data, "format": 2}), "utf-8")
    with pytest.raises(ReportFileError, match="its format is 2, this version writes 1"):
        store.read(path)


def test_places_where_no_report_can_be_kept(tmp_path: Path) -> None:
    for path, reason in (
        (tmp_path / "r.md", "the report is JSON; name it .json"),
        (tmp_path, "is a folder"),
        (tmp_path / "no" / "r.json", "there is no folder"),
    ):
        with pytest.raises(ReportFileError, match=reason):
            make_report(path, made_machine(), 0, 1.0, lambda line: None)


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(ReportFileError, match="cannot be written"):
        make_report(tmp_path / "r.json", made_machine(), 0, 1.0, lambda line: None)
    monkeypatch.undo()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.mkstemp", full)
    with pytest.raises(ReportFileError, match="No space left on device"):
        make_report(tmp_path / "r.json", made_machine(), 0, 1.0, lambda line: None)


def test_a_failed_write_keeps_the_file_before(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = made_report(ops=[right("a")])
    store.write(path, before)

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(ReportFileError):
        store.write(path, made_report())
    monkeypatch.undo()
    assert store.read(path) == before
    assert {file.name for file in path.parent.iterdir()} == {"r.json", "r.md"}


def test_a_finished_report_is_not_measured_again(path: Path) -> None:
    parts = {name: [right("a")] for name in
             ("ops", "models", "stress", "sweep", "attention", "speed", "peers")}  # fmt: skip
    store.write(path, made_report(**parts))
    lines: list[str] = []
    report = make_report(path, made_machine(), 99, 1.0, lines.append)
    assert report.left() == []
    assert lines == [f"continuing {path}, which has 7 results", "nothing is left to measure"]


def test_the_digest_is_that_of_the_sources() -> None:
    assert engine_digest() == engine_digest()
    assert len(engine_digest()) == 12
