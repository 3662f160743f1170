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
from app.models.drafts import Draft, compatible_draft
from app.models.loras import compatible_loras
from app.prompt.limited_tokenizer import LimitedTokenizer
from gpu import Engine, Tokenizer


def load_engine(
    settings: Settings,
    path: Path,
    progress: Progress,
    *,
    name: str | None = None,
    loras: Mapping[str, Path] | None = None,
    draft: Draft | None = None,
    warm_up: bool = False,
    tokenizer: LimitedTokenizer | None = None,
    replica: int = 0,
    gpu: str | None = None,
) -> Engine:
    """Load the model at `path`.

    name       of the model; that of its folder if None
    loras      folders of adapters by name; those that do not fit the model are left out
    draft      draft model; left out if it does not fit the model
    warm_up    compile the kernels of the first requests while the engine is idle
    tokenizer  the model's tokenizer if it is open already
    replica    number of this engine among those of the server
    gpu        number of the GPU that it was given, unless the settings name one
    """
    settings = settings.for_replica(replica)
    if settings.adapter is None:
        settings = replace(settings, adapter=gpu)
    known: LimitedTokenizer | Tokenizer | None = tokenizer
    draft_path = None
    if draft is not None:
        known = tokenizer or Tokenizer.load(path)  # the bundled model's, which is trusted
        draft_path = compatible_draft(draft, path, known)
    options = load_options(settings, compatible_loras(path, loras or {}), draft_path)
    return Engine.load(
        path,
        replace(options, warm_up=warm_up),
        name=name or (tale.NAME if path == tale.model_dir() else None),
        tokenizer=known,
        progress=progress,
    )
