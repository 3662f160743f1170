"""Fixtures: a server on a free port with the fake engine, and a fake hub."""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from huggingface_hub import constants
from huggingface_hub.utils import close_session

from app import create_app, tale
from app.config import Settings
from app.engine.supervisor import SupervisedEngine
from app.engine_client import EngineClient, Load, LocalEngine, ServedModel
from app.models.encoders import Encoders
from app.models.find_model import Model
from app.models.switching import ModelSwitcher
from app.prompt.encoder_texts import EncoderTexts
from app.prompt.tokenizing import NamedTokenizer
from app.server import bind, http_server
from app.train.trainer import Trainer
from app.ws.sessions import Retention
from tests.app.engine.processes import start_engine
from tests.app.fake_engine import loader
from tests.app.fake_tokenizer import CHAT_TEMPLATE, FakeTokenizer
from tests.app.models.fake_hub import FakeHub, Repo
from tests.app.page import PATIENCE_S, PageClient

__all__ = ["start_engine"]


@dataclass
class Site:
    """Running server and the pages that were opened on it."""

    port: int
    app: Flask
    engine: EngineClient
    pages: list[PageClient] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cookie(self) -> str:
        """Return the cookie of a new browser session."""
        with urllib.request.urlopen(f"{self.url}/") as response:
            return str(response.headers["Set-Cookie"]).partition(";")[0]

    def page(self, **options: Any) -> PageClient:
        """Open a page and wait until the engine is ready."""
        page = PageClient(self.port, **options)
        self.pages.append(page)
        page.until("status", state="ready")
        return page


@dataclass
class SiteOptions:
    """How `start_site` starts a server.

    load           fake engine in place of the one that `FakeOptions` describe
    client         client of an engine, in place of `load`
    process        run the engine in a process of its own
    compare        tokenizer of the page's comparison
    switch         how another model is loaded, for servers whose model can be changed
    wait           until the engine is ready
    supervision    `timeouts` and `restart_policy` of `SupervisedEngine`
    encoder_texts  of the embedding model of an engine that has one
    seq2seq_texts  of its encoder-decoder
    encoders       the models with encoders, of which the page may load another
    lora_folders   folders of the adapters, to which a training adds
    """

    load: Load | None = None
    client: EngineClient | None = None
    process: bool = False
    retention: Retention | None = None
    settings: Settings = field(default_factory=lambda: Settings(port=0))
    chat_template: str | None = CHAT_TEMPLATE
    compare: NamedTokenizer | None = None
    switch: Callable[[Settings, Model], Load] | None = None
    wait: bool = True
    supervision: dict[str, Any] = field(default_factory=dict)
    encoder_texts: EncoderTexts | None = None
    seq2seq_texts: EncoderTexts | None = None
    encoders: Encoders = field(default_factory=Encoders)
    lora_folders: dict[str, Path] = field(default_factory=dict)

    def served(self, fake: dict[str, Any]) -> ServedModel:
        """Return the model of a fake engine with these `FakeOptions`."""
        tokenizer = FakeTokenizer(self.chat_template, fake.get("marks", ()))
        load = self.load or loader(**{"delay": 0.002, **fake})
        return ServedModel(load, tokenizer, tale.model_dir())

    def client_of(self, served: ServedModel) -> EngineClient:
        """Return the client of its engine."""
        if self.client:
            return self.client
        if not self.process:
            return LocalEngine(served.load, served.tokenizer, served.path)
        return SupervisedEngine(served.load, served.tokenizer, path=served.path, **self.supervision)


StartSite = Callable[..., Site]
SITE_OPTIONS = {each.name for each in fields(SiteOptions)}
SUPERVISION = {"timeouts", "restart_policy"}


@pytest.fixture
def start_site() -> Iterator[StartSite]:
    """Return a function that starts servers. Keywords: those of `SiteOptions`, of its
    `supervision`, and of `FakeOptions`."""
    sites: list[tuple[Site, Any, threading.Thread]] = []

    def start(**keywords: Any) -> Site:
        of_site = {name: keywords.pop(name) for name in SITE_OPTIONS & keywords.keys()}
        supervision = {name: keywords.pop(name) for name in SUPERVISION & keywords.keys()}
        options = SiteOptions(**of_site, supervision=supervision)
        served = options.served(keywords)
        engine = options.client_of(served)
        settings, switch, encoders = options.settings, options.switch, options.encoders
        inputs = encoders.inputs
        inputs.embedding = options.encoder_texts or inputs.embedding
        inputs.encoder_decoder = options.seq2seq_texts or inputs.encoder_decoder
        switching = (
            ModelSwitcher(engine, settings, switch, served, options.lora_folders, encoders=encoders)
            if switch
            else None
        )
        app = create_app(
            settings, engine, options.retention, options.compare, switching,
            encoder_inputs=inputs,
            trainer=Trainer(engine, switching, settings) if switching else None,
        )  # fmt: skip
        engine.start()
        listener = bind("127.0.0.1", 0)
        server = http_server(listener, app)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        listener.close()
        site = Site(server.port, app, engine)
        sites.append((site, server, thread))
        if options.wait:
            wait_ready(engine)
        return site

    yield start
    for site, server, thread in sites:
        for page in site.pages:
            if page.connected:
                page.drop()
        server.shutdown()
        server.server_close()
        thread.join(5)
        site.engine.close()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    """Fake hub that `huggingface_hub` uses, without a login. Its cache and that of models from the
    package index are empty."""
    server = FakeHub()
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.removeprefix(constants.ENDPOINT)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.url + template)
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("app.models.wheels.cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    server.repos["some/tale"] = Repo(
        {path.name: path.read_bytes() for path in tale.model_dir().iterdir() if path.is_file()}
    )
    close_session()
    yield server
    server.close()
    close_session()


@pytest.fixture
def site(start_site: StartSite) -> Site:
    return start_site()


@pytest.fixture
def loading_site(start_site: StartSite, tmp_path: Path) -> Iterator[Site]:
    """Server whose engine loads until the test has ended."""
    ended = tmp_path / "ended"
    yield start_site(loads_after=ended, wait=False)
    ended.touch()


@pytest.fixture
def http() -> Iterator[FlaskClient]:
    """Client for requests to the application with the fake engine, without a socket."""
    engine = LocalEngine(loader(delay=0.002), FakeTokenizer(), tale.model_dir())
    engine.start()
    wait_ready(engine)
    yield create_app(Settings(port=0), engine).test_client()
    engine.close()


def wait_ready(engine: EngineClient) -> None:
    ready = threading.Event()
    engine.listen(lambda status, hello: ready.set() if hello else None)
    assert ready.wait(PATIENCE_S), engine.status


def wait_until_load_is(site: Site, running: int, waiting: int) -> None:
    """Wait until so many runs have a slot and wait; far less long than the runs would take."""
    deadline = time.monotonic() + 10
    while True:
        stats = site.engine.stats
        assert stats is not None
        if (stats.n_running, stats.n_waiting) == (running, waiting):
            return
        assert time.monotonic() < deadline, stats
        time.sleep(0.01)
