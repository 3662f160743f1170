"""A real server on a free port around the fake engine."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from huggingface_hub import constants
from huggingface_hub.utils import close_session

from app import create_app, tale
from app.backoff import Restarts
from app.config import Settings
from app.engines import EngineClient, Load, LocalEngine
from app.heartbeat import Patience
from app.models import Model
from app.server import bind, http_server
from app.sessions import Keeping
from app.switching import Switching
from app.tokenizing import Compared
from app.worker import ProcessEngine
from tests.app.fake_engine import loader
from tests.app.fake_hub import FakeHub, Repo
from tests.app.fake_tokenizer import CHAT_TEMPLATE, FakeTokenizer
from tests.app.page import Page
from tests.app.processes import start_engine

__all__ = ["start_engine"]


@dataclass
class Site:
    """A running server and the pages that were opened on it."""

    port: int
    app: Flask
    engine: EngineClient
    pages: list[Page] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cookie(self) -> str:
        """A new browser session."""
        with urllib.request.urlopen(f"{self.url}/") as response:
            return str(response.headers["Set-Cookie"]).partition(";")[0]

    def page(self, **options: Any) -> Page:
        """A page that has read its hello."""
        page = Page(self.port, **options)
        self.pages.append(page)
        page.until("status", state="ready")
        return page


StartSite = Callable[..., Site]


@pytest.fixture
def start_site() -> Iterator[StartSite]:
    """Start servers; keywords are those of `FakeOptions`, and `load` in their place, `process`,
    `keeping`, `settings`, `chat_template`, `compare`, `switch`, `wait`, `patience`, `restarts`."""
    sites: list[tuple[Site, Any, threading.Thread]] = []

    def start(
        *,
        load: Load | None = None,
        process: bool = False,
        keeping: Keeping | None = None,
        settings: Settings | None = None,
        chat_template: str | None = CHAT_TEMPLATE,
        compare: Compared | None = None,
        switch: Callable[[Settings, Model], Load] | None = None,
        wait: bool = True,
        patience: Patience | None = None,
        restarts: Restarts | None = None,
        **options: Any,
    ) -> Site:
        tokenizer = FakeTokenizer(chat_template)
        load = load or loader(**{"delay": 0.002, **options})
        engine: EngineClient = (
            ProcessEngine(load, tokenizer, patience=patience, restarts=restarts)
            if process
            else LocalEngine(load, tokenizer)
        )
        settings = settings or Settings(port=0)
        switching = Switching(engine, settings, switch) if switch else None
        app = create_app(settings, engine, keeping, compare, switching)
        engine.start()
        listener = bind("127.0.0.1", 0)
        server = http_server(listener, app)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        listener.close()
        site = Site(server.port, app, engine)
        sites.append((site, server, thread))
        if wait:
            wait_ready(engine)
        return site

    yield start
    for site, server, thread in sites:
        for page in site.pages:
            if page.connected:
                page.vanish()
        server.shutdown()
        server.server_close()
        thread.join(5)
        site.engine.close()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    """The stand-in, which everybody takes for the hub; an empty cache; nobody is logged in."""
    server = FakeHub()
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.removeprefix(constants.ENDPOINT)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.url + template)
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
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
def http() -> Iterator[FlaskClient]:
    """Plain requests to the application around the fake engine, without a socket."""
    engine = LocalEngine(loader(delay=0.002), FakeTokenizer())
    engine.start()
    wait_ready(engine)
    yield create_app(Settings(port=0), engine).test_client()
    engine.close()


def wait_ready(engine: EngineClient) -> None:
    ready = threading.Event()
    engine.listen(lambda status, hello: ready.set() if hello else None)
    assert ready.wait(20), engine.status
