"""`/api/loras/NAME`: what a loaded adapter changes.

GET  /api/loras/NAME   `LoraChanges`: norm and singular values of ΔW for each matrix, at strength 1.
                       404 for an adapter that is not loaded.

The server reads the adapter's files itself; the engine is not involved.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
from flask import Flask, Response

from app.engine_client import EngineClient
from app.http.client_limits import place
from app.http.errors import ModelNotFoundError
from app.http.json_bodies import answer
from gpu import LoraChange, lora_changes


class LoraChanges(msgspec.Struct, frozen=True):
    """Changes that the adapter `name` makes to the weights."""

    name: str
    changes: tuple[LoraChange, ...]


def register(app: Flask, engine: EngineClient, folders: Mapping[str, Path]) -> None:
    """Add the route. `folders`: of the engine's adapters by name."""

    @app.get("/api/loras/<name>")
    def lora(name: str) -> Response:
        loaded = [lora.name for lora in engine.require_ready().model.loras]
        if name not in loaded or name not in folders:
            has = f"it has {', '.join(loaded)}" if loaded else "it has none"
            raise ModelNotFoundError(f"no adapter {name[:64]!r} is loaded; {has}", "name")
        with place(engine):
            changes = lora_changes(name, folders[name], engine.require_path())
        return answer(LoraChanges(name, changes))
