"""`/api/weights`: what the running model is made of, and what one of its tensors is like.

Read from the model's files by this process; the engine is not asked, and needs no device for it.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import msgspec
from flask import Flask, Response, request

from app import tale
from app.engines import EngineClient
from app.openai_schema import ModelNotFoundError
from app.protocol import Hello
from gpu import Inventory, TensorSummary


def register(app: Flask, engine: EngineClient) -> None:
    """Add the routes. They read the model that `engine` runs, and no other."""
    reading = threading.Lock()
    """One summary at a time: each keeps pieces of a tensor in memory."""

    @app.get("/api/weights")
    def weights() -> Response:
        hello = _running(engine)
        inventory = Inventory.from_folder(_path(engine), _device_dtype(hello))
        return _json({"model": hello.model.name} | msgspec.to_builtins(inventory))

    @app.get("/api/weights/<path:name>")
    def tensor(name: str) -> Response:
        _running(engine)
        with reading:
            return _json(TensorSummary.from_folder(_path(engine), name))


def _path(engine: EngineClient) -> Path:
    return engine.path or tale.model_dir()


def _running(engine: EngineClient) -> Hello:
    """The hello; raises ModelNotFoundError when the request asks for another model."""
    hello, wanted = engine.require_ready(), request.args.get("model")
    if wanted is not None and wanted != hello.model.name:
        raise ModelNotFoundError(
            f"the model here is {hello.model.name!r}, not {wanted!r}; ask for that, "
            "or leave model out",
            "model",
        )
    return hello


def _device_dtype(hello: Hello) -> str | None:
    """How weights lie on the device. PyTorch keeps them as float32, whatever they were rounded to:
    the engine's formats say nothing about it."""
    return None if hello.device.backend == "torch" else hello.model.dtype


def _json(body: Any) -> Response:
    response = Response(msgspec.json.encode(body), mimetype="application/json")
    response.headers["Cache-Control"] = "no-store"
    return response
