"""Server on a free port with the fake engine or a real one, and the tokens it should produce."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from werkzeug.serving import make_server

from app import create_app, tale
from app.config import Settings
from app.engine.backoff import RestartPolicy
from app.engine.supervisor import SupervisedEngine
from app.engine_client import EngineClient, Load, LocalEngine, ServedModel
from app.models.find_model import Model
from app.models.switching import ModelSwitcher
from app.prompt.encoder_texts import EncoderInputs
from app.prompt.prompts import prompt_ids
from app.protocol.messages import Message
from app.train.trainer import Trainer
from app.ws.sessions import Retention
from e2e.shared_context import StartResponse, WsgiApp, cache_static_files, serve_blank
from gpu import Request, ScheduledUpdate
from gpu.events import Done, Event, Token
from gpu.sampling_params import SamplingParams
from tests.app import fake_encoder
from tests.app.fake_engine import FakeEngine, loader
from tests.app.fake_options import FakeOptions
from tests.app.fake_tokenizer import CHAT_TEMPLATE, FakeTokenizer


@dataclass
class Site:
    """Running server with its engine. `url` is the address of the page; `close` stops both.
    `loras`: folders of the engine's adapters. `path`: below it a proxy serves the page."""

    engine: EngineClient
    options: FakeOptions = field(default_factory=FakeOptions)
    settings: Settings = field(default_factory=lambda: Settings(port=0))
    loras: dict[str, Path] = field(default_factory=dict)
    path: str = ""

    def start(self, retention: Retention | None = None) -> Site:
        inputs = EncoderInputs(
            fake_encoder.TEXTS if self.options.embedding else None,
            fake_encoder.SEQ2SEQ_TEXTS if self.options.encoder_decoder else None,
        )
        trainer = Trainer(self.engine, self._switcher(), self.settings)
        app = create_app(
            self.settings,
            self.engine,
            retention,
            loras=self.loras,
            encoder_inputs=inputs,
            trainer=trainer,
        )
        served = serve_below(self.path, cache_static_files(app.wsgi_app))
        app.wsgi_app = serve_blank(served)  # type: ignore[method-assign]
        self._server = make_server("127.0.0.1", 0, app, threaded=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.engine.start()
        return self

    def _switcher(self) -> ModelSwitcher:
        """Return what loads trained adapters; it changes no models."""

        def refuse(settings: Settings, model: Model) -> Load:
            raise NotImplementedError

        served = ServedModel(loader(), self.engine.tokenizer, self.engine.path)
        return ModelSwitcher(self.engine, self.settings, refuse, served, self.loras)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.port}/{self.path}"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self.engine.close()

    def reference(
        self,
        prompt: str,
        *,
        chat: bool = True,
        updates: Sequence[ScheduledUpdate] = (),
        **params: Any,
    ) -> list[Token]:
        """Return the tokens that the fake engine generates for one chat message (or a prompt) with
        these scheduled updates and no others."""
        messages = [Message("user", prompt)] if chat else None
        ids = prompt_ids(self.engine.tokenizer, None if chat else prompt, messages)
        return self.undelayed(Request(ids, SamplingParams(**params), updates=updates))

    def undelayed(self, request: Request) -> list[Token]:
        """Return the tokens that the fake engine generates for a request, without its delay."""
        engine = FakeEngine(FakeOptions(**{**vars(self.options), "delay": 0.0}))
        try:
            return tokens_of(engine, request, seconds=10)
        finally:
            engine.close()


def serve_below(path: str, app: WsgiApp) -> WsgiApp:
    """Return `app` as a proxy serves it below `path`, which it does not tell; the rest is not
    found."""

    def serve(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        asked = environ["PATH_INFO"]
        if not asked.startswith(f"/{path}"):
            start_response("404 Not Found", [])
            return []
        return app({**environ, "PATH_INFO": asked.removeprefix(f"/{path}") or "/"}, start_response)

    return serve


def tokens_of(
    engine: FakeEngine | EngineClient, request: Request, *, seconds: float
) -> list[Token]:
    """Return the tokens of a run, which must end within so many seconds."""
    tokens: list[Token] = []
    done = threading.Event()

    def on_event(event: Event) -> None:
        if isinstance(event, Token):
            tokens.append(event)
        if isinstance(event, Done):
            done.set()

    engine.submit(request, on_event)
    assert done.wait(seconds), "the engine did not finish"
    return tokens


def fake_site(
    *,
    process: bool = False,
    chat: bool = True,
    retention: Retention | None = None,
    load: Callable[..., Any] | None = None,
    restart_policy: RestartPolicy | None = None,
    tool_url: tuple[str, ...] = (),
    **options: Any,
) -> Site:
    """Return a running server with the fake engine; `process`: in a separate process."""
    tokenizer = FakeTokenizer(CHAT_TEMPLATE if chat else None)
    load = load or loader(**options)
    path = tale.model_dir()  # a fake engine's weights are those of the bundled model
    engine: EngineClient = LocalEngine(load, tokenizer, path)
    if process:
        engine = SupervisedEngine(load, tokenizer, path=path, restart_policy=restart_policy)
    settings = Settings(port=0, tool_url=tool_url)
    return Site(engine, FakeOptions(**options), settings).start(retention)
