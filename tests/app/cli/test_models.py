"""`tokenglass models` lists what is bundled, downloaded and on offer, and removes what it kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from app.cli.main import main
from app.models import wheels
from app.models.known import DEFAULT, known_embedding_models, known_models
from tests.app.models.fake_hub import FakeHub


def run(*args: str) -> list[str]:
    done = CliRunner().invoke(main, ["models", *args], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output.splitlines()


@pytest.fixture(autouse=True)
def cache(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Empty caches of the hub and of wheels."""
    monkeypatch.setenv("TOKENGLASS_CACHE", str(tmp_path / "kept"))


def test_every_model_has_its_place_size_licence_and_use() -> None:
    head, *lines = run()
    assert head.split() == ["model", "where", "size", "licence", "good", "for"]
    rows = {line.split()[0]: line for line in lines if line}
    for model in (*known_models(), *known_embedding_models()):
        place = "package index" if model.source == "index" else "hub"
        for fact in (place, model.licence, model.good_for):
            assert fact in rows[model.name]
    assert all("bundled" in rows[name] for name in ("tale-3m", "tale-moe"))
    assert " 93 MB " in rows[DEFAULT]


def test_a_downloaded_model_is_listed_so_and_can_be_removed() -> None:
    file = wheels.cached_file(DEFAULT)
    assert file is not None
    file.parent.mkdir(parents=True)
    with file.open("wb") as content:
        content.truncate(wheels.WHEELS[DEFAULT].n_bytes)  # sparse
    assert any(DEFAULT in line and "downloaded" in line for line in run())
    assert run("--remove", DEFAULT) == [f"{DEFAULT}: 98 MB freed"]
    assert not file.parent.exists()
    assert run("--remove", DEFAULT) == [f"{DEFAULT} was not on this machine"]


def test_what_is_not_of_the_package_index_is_not_removed() -> None:
    done = CliRunner().invoke(main, ["models", "--remove", "/etc"])
    assert done.exit_code == 2
    assert "expected a model of the package index" in done.output
