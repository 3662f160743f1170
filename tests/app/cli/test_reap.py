"""`tokenglass reap` prunes a random mixture-of-experts model that has unused experts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from app.cli.main import main
from gpu import ModelConfig
from tests.gpu.analysis.dead_experts import planted
from tests.gpu.models import random_models

NAME, N_EXPERTS = "qwen2_moe", 10


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("Once upon a time there was a fox. " * 10, "utf-8")
    return path


def run(*args: object) -> Result:
    given = [str(arg) for arg in args]
    return CliRunner().invoke(main, ["reap", "--backend", "torch", *given], catch_exceptions=False)


def perplexities(result: Result) -> list[float]:
    return [float(found) for found in re.findall(r"^perplexity \w+ +(\S+)$", result.output, re.M)]


def test_a_dead_expert_of_each_layer_goes_and_perplexity_stays(tmp_path: Path, text: Path) -> None:
    out, test = tmp_path / "less", tmp_path / "test.txt"
    test.write_text("Another text, of which nothing was scored.", "utf-8")
    dead = planted(NAME, tmp_path / "whole")
    result = run(
        "--model", tmp_path / "whole", "--text", text, "--test", test, "--share", 0.1, "--out", out,
        "--span", 32, "--tokens", 100, "--dtype", "f32",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0] == "whole: 10 experts in each of 2 layers, 4 of them for each token"
    before, after = perplexities(result)
    assert before == pytest.approx(after, rel=1e-6)
    rows = [line.split(maxsplit=3) for line in lines if re.match(r" +\d+  ", line)]
    assert {int(row[0]): row[3] for row in rows} == {
        layer: f"{expert} (never chosen)" for layer, expert in dead.items()
    }
    assert [row[2] for row in rows] == ["0", "0"]
    assert f"written to {out}: 9 experts in each of these layers" in lines
    config = ModelConfig.from_folder(out)
    assert config.experts is not None
    assert config.experts.n_experts == N_EXPERTS - 1
    notes = json.loads((out / "reap.json").read_text())
    assert {of["layer"]: sorted({*range(10)} - {*of["kept"]}) for of in notes["layers"]} == {
        layer: [expert] for layer, expert in dead.items()
    }
    assert all(len(of["scores"]) == len(of["tokens"]) == N_EXPERTS for of in notes["layers"])


def test_what_cannot_be_pruned_is_said_before_anything_is_loaded(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.cli.reap.load_engine", lambda *_, **__: pytest.fail("loaded"))
    folder, full = random_models.folder(NAME), tmp_path / "full"
    full.mkdir()
    (full / "mine").write_text("here")
    out = tmp_path / "out"
    for args, message in (
        (("--model", folder, "--out", full), "exists and is not an empty folder"),
        (("--model", folder, "--out", out, "--share", 0.7), "each token uses 4; use 0.6"),
        (("--model", folder, "--out", out, "--share", 0.01), "is less than one; use 0.1 or more"),
        (("--out", out), "llama models have no experts to prune"),
    ):
        result = run("--text", text, *args)
        assert result.exit_code == 2
        assert message in result.output
        assert result.output.count("Error: ") == 1
    assert not out.exists()
    for share in (1.5, "nan"):
        assert run("--model", folder, "--text", text, "--out", out, "--share", share).exit_code == 2
