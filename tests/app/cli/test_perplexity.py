"""`tokenglass perplexity` with fake engines whose results are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from app import tale
from app.cli.main import main
from app.config import Settings
from app.models.model_source import ModelSource
from gpu import ModelConfig, Request, Tokenizer


class Sure:
    """Engine with uniform logits, to which all but f32 and f16 with an f16 cache add a slope."""

    def __init__(self, settings: Settings) -> None:
        exact = settings.kv_dtype == "f16" or settings.dtype == "f32"
        self.slope = 0.0 if exact else 1e-3
        of_q8 = settings.activations == "q8" and settings.dtype in ("q8", "q4")
        memory = SimpleNamespace(weights=1_250_000)
        self.info = SimpleNamespace(activations="q8" if of_q8 else "f32", memory=memory)

    def logits(self, ids: list[int]) -> Any:
        return np.tile(self.slope * np.arange(4096, dtype=np.float32) / 4096, (len(ids), 1))

    def submit(self, request: Request) -> Any:
        timings = SimpleNamespace(predicted_per_second=12.34)
        return FinishedRun(SimpleNamespace(timings=timings), request.params.max_tokens)

    def close(self) -> None: ...


class FinishedRun(list[None]):
    """Run that has written `n` tokens."""

    def __init__(self, done: Any, n: int) -> None:
        super().__init__([None] * n)
        self.done = done


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch, sources: list[ModelSource]) -> list[Settings]:
    """Settings of the engines that were loaded."""
    found: list[Settings] = []

    def load(settings: Settings, source: ModelSource, progress: Any, **_: Any) -> Sure:
        found.append(settings)
        sources.append(source)
        return Sure(settings)

    monkeypatch.setattr("app.cli.perplexity.load_engine", load)
    return found


@pytest.fixture
def sources() -> list[ModelSource]:
    """Files of those engines."""
    return []


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("Once upon a time there was a fox. " * 40, "utf-8")
    return path


def run(*args: str) -> Result:
    return CliRunner().invoke(main, ["perplexity", *args], catch_exceptions=False)


def test_a_table_of_all_types(loaded: list[Settings], text: Path) -> None:
    result = run("--text", str(text), "--span", "64", "--tokens", "150")
    assert result.exit_code == 0
    head, columns, *rows = result.output.splitlines()
    rows, caches = rows[:4], rows[4:]
    assert head == "tale-3m: 147 tokens, in 3 spans of up to 64 tokens"
    assert caches[0] == "KV cache, with weights in f16:"
    assert [row.split()[:3] for row in caches[2:]] == [
        ["f16", "3,072", "all"],
        ["q8", "1,728", "all"],
        ["q8q4", "1,344", "all"],
        ["rotated4", "960", "all"],
    ]
    assert len({len(line) for line in caches[1:]}) == 1
    assert columns.split()[:5] == ["dtype", "weights", "tokens/s", "bits/byte", "perplexity"]
    assert rows[0].split()[:4] == ["f32", "1.2", "MB", "12.3"]
    assert rows[0].split()[5] == "4096.0000"
    assert [row.split()[0] for row in rows] == ["f32", "f16", "q8", "q4"]
    assert all("nats" in row and row.endswith("0.00%") for row in rows[1:])
    assert len({len(line) for line in (columns, *rows)}) == 1
    assert [settings.dtype for settings in loaded] == ["f32", "f16", "q8", "q4", *["f16"] * 4]
    assert [s.kv_dtype for s in loaded[4:]] == ["f16", "q8", "q8q4", "rotated4"]
    assert {(s.context, s.max_num_seqs) for s in loaded} == {(64, 1)}


def test_one_type_is_compared_with_f32(loaded: list[Settings], text: Path) -> None:
    result = run("--text", str(text), "--dtype", "q4", "--backend", "torch")
    assert [row.split()[0] for row in result.output.splitlines()[2:]] == ["f32", "q4"]
    assert {settings.backend for settings in loaded} == {"torch"}


def test_one_cache_is_compared_with_f16_by_position(loaded: list[Settings], text: Path) -> None:
    result = run("--text", str(text), "--kv-dtype", "q8", "--span", "200")
    assert [(s.dtype, s.kv_dtype) for s in loaded] == [("f16", "f16"), ("f16", "q8")]
    rows = [line.split() for line in result.output.splitlines()[3:]]
    assert [row[0] for row in rows] == ["f16", "0–127", "128–198", "q8", "0–127", "128–198"]
    assert all(row[-1].endswith("%") for row in rows[3:])
    assert run("--text", str(text), "--kv-dtype", "q5").exit_code == 2


def test_a_distilled_model_has_a_row(
    loaded: list[Settings], sources: list[ModelSource], text: Path
) -> None:
    """By bits per byte models with different tokens can be compared; here each token costs 12."""
    result = run("--text", str(text), "--draft", "bundled", "--dtype", "q8", "--tokens", "90")
    rows = [line.split() for line in result.output.splitlines()[2:]]
    assert [row[0] for row in rows] == ["f32", "q8", "draft"]
    assert [source.path for source in sources] == [*[tale.model_dir()] * 2, tale.draft_dir()]
    tokenizer = Tokenizer.load(tale.model_dir())
    ids = tokenizer.encode(text.read_text("utf-8"), bos=False)[:90]
    counted = tokenizer.decode(ids[1:] if not tokenizer.encode("") else ids)
    bits = 12 * int(result.output.split()[1]) / len(counted.encode())
    assert rows[0][4] == f"{bits:.4f}"
    assert rows[2][7] == "nats"


def test_a_draft_with_other_logits_is_refused(
    loaded: list[Settings], text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where only caches are compared, the draft has its row."""
    result = run("--text", str(text), "--draft", "bundled", "--kv-dtype", "q8", "--tokens", "90")
    assert [row.split()[0] for row in result.output.splitlines()[2:4]] == ["f32", "draft"]
    from_folder = ModelConfig.from_folder

    def padded(path: Path) -> ModelConfig:
        config = from_folder(path)
        return replace(config, vocab_size=config.vocab_size + 32 * (path == tale.draft_dir()))

    monkeypatch.setattr(ModelConfig, "from_folder", padded)
    result = run("--text", str(text), "--draft", "bundled")
    assert result.exit_code == 2
    assert "the draft model has 4,128 logits and the model 4,096" in result.output


@pytest.mark.ci
def test_the_speed_of_real_engines(text: Path) -> None:
    result = run(
        "--text", str(text), "--draft", "bundled", "--dtype", "q4", "--span", "48", "--tokens", "90"
    )
    rows = [line.split() for line in result.output.splitlines()[2:]]
    assert all(float(row[3]) > 0 for row in rows)
    sizes = [float(row[1]) for row in rows]
    assert sizes[0] > sizes[1] > sizes[2]


def test_q8_activations_are_named(loaded: list[Settings], text: Path) -> None:
    result = run("--text", str(text), "--dtype", "f16", "--dtype", "q8", "--activations", "q8")
    rows = result.output.splitlines()[2:]
    assert [row.endswith("  q8 activations") for row in rows] == [False, False, True]
    assert {settings.activations for settings in loaded} == {"q8"}


@pytest.mark.parametrize("data", [b"", b"\xff\xfe\x00", b"a"])
def test_files_that_are_no_text(loaded: list[Settings], tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "bad.txt"
    path.write_bytes(data)
    result = run("--text", str(path))
    assert result.exit_code == 2
    assert result.output.count("Error: ") == 1
    assert not loaded


def test_a_text_is_needed() -> None:
    assert run().exit_code == 2
    assert run("--text", "/nowhere/at/all").exit_code == 2
