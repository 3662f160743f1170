"""A real server on a free port, around the fake engine or a real one, and what it should answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from werkzeug.serving import make_server

from app import create_app
from app.backoff import Restarts
from app.config import Settings
from app.engines import EngineClient, LocalEngine
from app.prompts import prompt_ids
from app.protocol import Message
from app.sessions import Keeping
from app.worker import ProcessEngine
from gpu import ChangeAt
from gpu.events import Done, Event, Token
from gpu.sampling import SamplingParams
from tests.app.fake_engine import FakeEngine, FakeOptions, loader
from tests.app.fake_tokenizer import CHAT_TEMPLATE, FakeTokenizer


@dataclass
class Site:
    """`url`: where the page is. `close` ends the server and its engine."""

    engine: EngineClient
    options: FakeOptions = field(default_factory=FakeOptions)

    def start(self, keeping: Keeping | None = None) -> Site:
        app = create_app(Settings(port=0), self.engine, keeping)
        self._server = make_server("127.0.0.1", 0, app, threaded=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.engine.start()
        return self

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.port}/"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self.engine.close()

    def reference(
        self, prompt: str, *, chat: bool = True, script: Sequence[ChangeAt] = (), **params: Any
    ) -> list[Token]:
        """The tokens the fake engine writes for one chat message (or a prompt), disturbed by
        nothing but a script."""
        messages = [Message("user", prompt)] if chat else None
        ids = prompt_ids(self.engine.tokenizer, None if chat else prompt, messages)
        engine = FakeEngine(FakeOptions(**{**vars(self.options), "delay": 0.0}))
        tokens: list[Token] = []
        done = threading.Event()

        def on_event(event: Event) -> None:
            if isinstance(event, Token):
                tokens.append(event)
            if isinstance(event, Done):
                done.set()

        engine.submit(ids, SamplingParams(**params), on_event=on_event, script=script)
        assert done.wait(10), "the fake engine did not finish"
        engine.close()
        return tokens


def fake_site(
    *,
    process: bool = False,
    chat: bool = True,
    keeping: Keeping | None = None,
    load: Callable[..., Any] | None = None,
    restarts: Restarts | None = None,
    **options: Any,
) -> Site:
    """A site around the fake engine; in a process of its own when `process`."""
    tokenizer = FakeTokenizer(CHAT_TEMPLATE if chat else None)
    load = load or loader(**options)
    engine: EngineClient = LocalEngine(load, tokenizer)
    if process:
        engine = ProcessEngine(load, tokenizer, restarts=restarts)
    return Site(engine, FakeOptions(**options)).start(keeping)
