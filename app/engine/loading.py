"""Loading the engine with the settings of the command line. Needs no Flask, so that command-line
tools and the engine's process can use it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from app import tale
from app.config import Settings
from app.engine.client import Progress
from app.engine.options import load_options
from app.models.loras import compatible_loras
from app.prompt.limited_tokenizer import LimitedTokenizer
from gpu import Engine


def load_engine(
    settings: Settings,
    path: Path,
    progress: Progress,
    *,
    name: str | None = None,
    loras: Mapping[str, Path] | None = None,
    warm_up: bool = False,
    tokenizer: LimitedTokenizer | None = None,
    replica: int = 0,
) -> Engine:
    """Load the model at `path`.

    name       of the model; that of its folder if None
    loras      folders of adapters by name; those that do not fit the model are left out
    warm_up    compile the kernels of the first requests while the engine is idle
    tokenizer  the model's tokenizer if it is open already
    replica    number of this engine among those of the server
    """
    settings = settings.for_replica(replica)
    options = replace(load_options(settings, compatible_loras(path, loras or {})), warm_up=warm_up)
    return Engine.load(
        path,
        options,
        name=name or (tale.NAME if path == tale.model_dir() else None),
        tokenizer=tokenizer,
        progress=progress,
    )
