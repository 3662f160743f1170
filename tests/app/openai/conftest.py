"""Fixtures: a server with the bundled model, and the official client."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator

import openai
import pytest

from app import create_app, tale
from app.config import Settings
from app.engine_client import LocalEngine
from app.server import bind, http_server
from gpu import Engine, LoadOptions, Tokenizer
from tests.app.fake_tokenizer import TOOL_TEMPLATE

LOAD_SECONDS = 180
"""PyTorch is imported first, which takes long where others work beside."""
MODEL = "tale-3m"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Address of a server with the bundled model."""
    folder = tale.model_dir()
    options = LoadOptions(backend="torch", dtype="f32", slots=4, context=1024)
    load = functools.partial(Engine.load, folder, options, name=MODEL)
    tokenizer = Tokenizer.load(folder)
    tokenizer.tool_template = TOOL_TEMPLATE
    engine = LocalEngine(lambda progress: load(), tokenizer, folder)
    ready = threading.Event()
    engine.listen(lambda status, hello: ready.set() if hello else None)
    engine.start()
    assert ready.wait(LOAD_SECONDS), engine.status
    listener = bind("127.0.0.1", 0)
    server = http_server(listener, create_app(Settings(port=0), engine))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    listener.close()
    yield f"http://127.0.0.1:{server.port}"
    server.shutdown()
    server.server_close()
    thread.join(5)
    engine.close()


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client
