"""`/api/weights`: list the tensors of the running model, and summarise one of them.

The server reads the model's files itself; the engine is not involved.
"""

from __future__ import annotations

import threading

import msgspec
from flask import Flask, Response, request

from app.engine_client import EngineClient, UnavailableError
from app.http.client_limits import place
from app.http.errors import ModelNotFoundError
from app.http.json_bodies import answer
from app.protocol.messages import Hello
from gpu import Inventory, TensorSummary


def register(app: Flask, engine: EngineClient) -> None:
    """Add the routes. They read only the model that `engine` runs."""
    reading = threading.Lock()
    """Held while a tensor is summarised: each summary keeps parts of a tensor in memory."""

    @app.get("/api/weights")
    def weights() -> Response:
        hello = _running(engine)
        inventory = Inventory.from_folder(engine.require_path(), _device_dtype(hello))
        return answer({"model": hello.model.name} | msgspec.to_builtins(inventory))

    @app.get("/api/weights/<path:name>")
    def tensor(name: str) -> Response:
        _running(engine)
        with place(engine), reading:
            return answer(TensorSummary.from_folder(engine.require_path(), name))


def _running(engine: EngineClient) -> Hello:
    """Return the engine's hello. Raises ModelNotFoundError if another model is requested, and
    UnavailableError for a model whose files are elsewhere."""
    hello, requested = engine.require_ready(), request.args.get("model")
    if hello.upstream is not None:
        raise UnavailableError(
            f"the weights are at {hello.upstream.url}, which does not give them out"
        )
    if requested is not None and requested != hello.model.name:
        raise ModelNotFoundError(
            f"this server runs the model {hello.model.name!r}, but the request names "
            f"{requested!r}; change that, or leave model out",
            "model",
        )
    return hello


def _device_dtype(hello: Hello) -> str | None:
    """Return the storage type of the weights on the device; None for PyTorch, which keeps rounded
    weights as float32."""
    return None if hello.device.backend == "torch" else hello.model.dtype
