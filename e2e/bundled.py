"""Server with the bundled model, whose engine a test can use as the page does.

The model generates hundreds of tokens per second, and a browser that shares two cores with three
others may take a second to move a slider, which would then come after the end of the text. So the
engine waits `TOKEN_SECONDS` after every token.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from app import tale
from app.config import Settings
from app.engine.loading import load_engine
from app.engine.supervisor import SupervisedEngine
from app.engine_client import OnEvent, Progress
from app.models.model_source import ModelSource
from app.protocol.messages import Hello, Status
from e2e.site import Site, tokens_of
from gpu import Engine, Request, SamplingParams, ScheduledUpdate, Tokenizer
from gpu.events import Event, Token
from gpu.inspection.requests import Answer, Question

LOAD_SECONDS = 180
ANSWER_SECONDS = 60
TOKEN_SECONDS = 0.02


class PacedEngine:
    """Real engine that waits `TOKEN_SECONDS` after every token."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def submit(self, request: Request, on_event: OnEvent) -> Any:
        def slowly(event: Event) -> None:
            on_event(event)
            if isinstance(event, Token):
                time.sleep(TOKEN_SECONDS)

        return self._engine.submit(request, slowly)


def load_paced_engine(
    settings: Settings, folder: Path, progress: Progress, *, loras: Mapping[str, Path]
) -> PacedEngine:
    return PacedEngine(load_engine(settings, ModelSource(folder), progress, loras=loras))


@contextmanager
def bundled_site(loras: Mapping[str, Path] | None = None) -> Iterator[Site]:
    """Run a server as `tokenglass serve` does; yield it when its engine is ready.

    `loras` are the folders of adapters.
    """
    os.environ["TOKENGLASS_CACHE"] = os.devnull  # without a cache folder, nothing is autotuned
    folder = tale.model_dir()
    folders = dict(loras or {})
    load = functools.partial(load_paced_engine, Settings(port=0), folder, loras=folders)
    site = Site(SupervisedEngine(load, Tokenizer.load(folder), path=folder), loras=folders)
    settled = threading.Event()

    def on_state(status: Status, hello: Hello | None) -> None:
        if status.state in ("ready", "failed"):
            settled.set()

    site.engine.listen(on_state)
    site.start()
    try:
        assert settled.wait(LOAD_SECONDS), "the engine did not start"
        site.engine.require_ready()
        yield site
    finally:
        site.close()


def engine_tokens(
    site: Site, ids: list[int], params: SamplingParams, updates: tuple[ScheduledUpdate, ...] = ()
) -> list[Token]:
    """Return the tokens that the engine of `site` generates without a page."""
    request = Request(ids, params, updates=updates)
    return tokens_of(site.engine, request, seconds=ANSWER_SECONDS)


def ask_engine(site: Site, question: Question) -> Answer:
    return site.engine.inspect(question).result(ANSWER_SECONDS)
