"""`tokenglass search` indexes documents and prints the chunks nearest to a question."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from app.cli import search as command
from app.cli.main import main
from app.models.encoders import FoundEncoder
from gpu import DeviceError
from tests.app.fake_encoder import INFO, TEXTS, ids_of
from tests.app.fake_engine import FakeEngine
from tests.app.fake_inspection import fake_encoded
from tests.app.fake_options import FakeOptions, info_of
from tests.app.retrieval.pdf_files import pdf_of

LINES = ("the little fox", "an old forest", "a golden lamp")


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOKENGLASS_CACHE", str(tmp_path / "cache"))
    found = FoundEncoder(tmp_path, TEXTS, 1)
    monkeypatch.setattr(command, "find_embedding_model", lambda settings: found)
    monkeypatch.setattr(
        command, "load_engine", lambda *args, **options: FakeEngine(FakeOptions(embedding=INFO))
    )


def run(question: str, *args: object) -> Result:
    return CliRunner().invoke(main, ["search", question, *map(str, args)])


def test_the_nearest_chunks_are_printed_and_the_index_is_kept(tmp_path: Path) -> None:
    files = [tmp_path / f"{i}.txt" for i in range(len(LINES))]
    for file, line in zip(files, LINES, strict=True):
        file.write_text(line, "utf-8")
    pdf = tmp_path / "two.pdf"
    pdf.write_bytes(pdf_of(["The owl was happy.", "The badger was not."]))
    sizes = ("--size", 10, "--overlap", 0)
    result = run("who is golden", *files, pdf, *sizes, "--top", 20)
    assert result.exit_code == 0, result.output
    assert "0.txt: 1 chunks indexed in" in result.stderr
    wanted = ids_of("find who is golden")
    engine = info_of(FakeOptions(embedding=INFO))
    score = {
        line: float(np.dot(fake_encoded(ids_of(line), engine), fake_encoded(wanted, engine)))
        for line in LINES
    }
    lines = result.stdout.splitlines()
    for i, line in enumerate(LINES):
        assert f"{score[line]:.3f}  {i}.txt, chunk 1" in lines
    printed = [float(line.split()[0]) for line in lines if ", chunk " in line]
    assert printed == sorted(printed, reverse=True)
    assert any("two.pdf, page 2, chunk" in line for line in lines)
    again = run("who is golden", "--top", 1)
    assert again.stdout.splitlines()[0] == lines[0]


def test_a_pipe_gets_the_text_of_a_chunk_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "colours.txt"
    file.write_text("a \x1b[31mred\x1b[0m fox", "utf-8")
    result = run("fox", file, "--size", 10, "--overlap", 0)
    assert "\x1b[31m" in result.stdout


def test_errors_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_bytes(b"")
    for args, code, says in (
        (("a",), 2, "there are no documents yet"),
        (("a", empty, "--size", 10, "--overlap", 0), 2, "empty.txt is empty"),
        (("a", empty), 2, "expected 4 to 10 tokens for a chunk"),
        (("a", tmp_path / "none.txt"), 2, "does not exist"),
        (("a", "--top", 21), 2, "21 is not in the range"),
    ):
        result = run(*args)
        assert (result.exit_code, result.stdout) == (code, "")
        assert says in result.stderr

    def fail(*args: object, **options: object) -> FakeEngine:
        raise DeviceError("there is no adapter")

    monkeypatch.setattr(command, "load_engine", fail)
    result = run("a")
    assert (result.exit_code, result.stderr) == (1, "Error: there is no adapter\n")


def test_a_document_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, read = tmp_path / "secret.txt", Path.read_bytes
    file.write_text("mine")

    def refuse(path: Path) -> bytes:
        if path == file:
            raise PermissionError(13, "Permission denied")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    result = run("a", file)
    assert result.exit_code == 2
    assert result.stderr == f"Error: {file}: cannot be read (Permission denied)\n"


def test_without_faiss_nothing_is_downloaded_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "find_embedding_model", lambda settings: pytest.fail("fetched"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    result = run("a")
    assert result.exit_code == 1
    assert result.stderr == "Error: retrieval needs FAISS: pip install 'tokenglass[search]'\n"
