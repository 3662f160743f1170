"""A site around the bundled model, whose engine a test can ask the same as the page does."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from app import tale
from app.config import Settings
from app.protocol import Hello, Status
from app.server import load_engine
from app.worker import ProcessEngine
from e2e.site import Site
from gpu import Tokenizer
from gpu.inspection import Answer, Question

LOAD_SECONDS = 180
ANSWER_SECONDS = 60


@contextmanager
def bundled_site(loras: Mapping[str, Path] | None = None) -> Iterator[Site]:
    """As `tokenglass serve` serves it, once its engine is ready; `loras`: folders of adapters."""
    os.environ["TOKENGLASS_CACHE"] = os.devnull  # no place to keep tunings: none is measured
    folder = tale.model_dir()
    load = functools.partial(load_engine, Settings(port=0), folder, loras=dict(loras or {}))
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


def answer_of(site: Site, question: Question) -> Answer:
    return site.engine.inspect(question).result(ANSWER_SECONDS)
