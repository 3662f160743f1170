"""A site around the bundled model, whose engine a test can ask the same as the page does.

The model writes hundreds of tokens a second, and a browser that shares two cores with three others
may take a second to move a slider: what a test changes while the text is written would come after
its end. So the engine takes `TOKEN_SECONDS` for every token at least.
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
from app.engines import OnEvent, Progress
from app.protocol import Hello, Status
from app.server import load_engine
from app.worker import ProcessEngine
from e2e.site import Site
from gpu import ChangeAt, Engine, SamplingParams, Tokenizer
from gpu.events import Done, Event, Token
from gpu.inspection import Answer, Question

LOAD_SECONDS = 180
ANSWER_SECONDS = 60
TOKEN_SECONDS = 0.02


class Unhurried:
    """A real engine whose thread rests after every token it tells of."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def submit(self, *args: Any, on_event: OnEvent, **options: Any) -> Any:
        def slowly(event: Event) -> None:
            on_event(event)
            if isinstance(event, Token):
                time.sleep(TOKEN_SECONDS)

        return self._engine.submit(*args, on_event=slowly, **options)


def unhurried(
    settings: Settings, folder: Path, progress: Progress, *, loras: Mapping[str, Path]
) -> Unhurried:
    return Unhurried(load_engine(settings, folder, progress, loras=loras))


@contextmanager
def bundled_site(loras: Mapping[str, Path] | None = None) -> Iterator[Site]:
    """As `tokenglass serve` serves it, once its engine is ready; `loras`: folders of adapters."""
    os.environ["TOKENGLASS_CACHE"] = os.devnull  # no place to keep tunings: none is measured
    folder = tale.model_dir()
    load = functools.partial(unhurried, Settings(port=0), folder, loras=dict(loras or {}))
    site = Site(ProcessEngine(load, Tokenizer.load(folder)))
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


def written_by(
    site: Site, ids: list[int], params: SamplingParams, script: tuple[ChangeAt, ...] = ()
) -> list[Token]:
    """What the engine of a site writes when no page is there."""
    tokens: list[Token] = []
    done = threading.Event()

    def on_event(event: Event) -> None:
        if isinstance(event, Token):
            tokens.append(event)
        if isinstance(event, Done):
            done.set()

    site.engine.submit(ids, params, capture=False, on_event=on_event, script=script)
    assert done.wait(ANSWER_SECONDS), "the engine did not finish"
    return tokens


def answer_of(site: Site, question: Question) -> Answer:
    return site.engine.inspect(question).result(ANSWER_SECONDS)
