"""Exports of trained models, and what the server's engine writes with them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.config import Settings
from app.models.find_model import find_model
from app.site.export import export
from gpu import Engine, Request, SamplingParams
from gpu.load_options import LoadOptions
from tests.golden import Trained, trained_models

TALE = trained_models()[0]
SMALL = trained_models()[-1]
"""stories260k, if it lies beside the project; else the bundled model."""


def exported(
    model: Trained,
    folder: Path,
    dtype: str,
    kv_dtype: str | None = None,
    loras: Mapping[str, Path] | None = None,
) -> Path:
    settings = Settings(model=str(model.folder), dtype=dtype, kv_dtype=kv_dtype)
    return export(settings, find_model(settings), folder / model.name, loras=loras).folder


def server_tokens(
    model: Trained, dtype: str, ids: list[int], kv_dtype: str | None = None, **asked: Any
) -> list[Any]:
    """Return what the server's engine writes. `asked`: settings, and fields of the request."""
    fields = ("capture", "updates", "interventions")
    request = {name: asked.pop(name) for name in fields if name in asked}
    params = SamplingParams(**{"seed": 5, "ignore_eos": True, **asked})
    options = LoadOptions(dtype=dtype, kv_dtype=kv_dtype, slots=2)
    engine = Engine.load(model.folder, options)
    try:
        return list(engine.submit(Request(ids, params, **request)))
    finally:
        engine.close()
