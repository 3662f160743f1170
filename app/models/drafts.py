"""Find the draft model of `--draft`, which is named as any model is."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path

from app.config import Settings
from app.engine.client import Tokenizer
from app.engine.options import load_options
from app.models.find_model import find_model
from app.models.progress_line import fetch_with_line
from gpu import Footprint, ModelError, expect_same_vocabulary

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Draft:
    """Draft model whose files are on this machine. `n_bytes`: what it needs on the device."""

    path: Path
    tokenizer: Tokenizer
    n_bytes: int


def find_draft(settings: Settings) -> Draft | None:
    """Return the draft model that the settings name, downloaded if it is one of the hub; None if
    they name none. Raises what `find_model` raises."""
    if settings.draft is None:
        return None
    model = find_model(replace(settings, model=settings.draft, revision=None), must_fit=False)
    fetch_with_line(model)
    options = replace(load_options(settings), context=None, kv_dtype=None, kv_offload_bytes=0)
    return Draft(model.path, model.tokenizer, Footprint.of(model.path, options).total)


def check_draft(draft: Draft, tokenizer: Tokenizer) -> None:
    """Raise ModelError unless the draft model has the tokens of the model, whose tokenizer is
    `tokenizer`."""
    expect_same_vocabulary(tokenizer, draft.path, draft.tokenizer)


def compatible_draft(draft: Draft, tokenizer: Tokenizer) -> Path | None:
    """Return the path of the draft model if it fits the model; else log a warning."""
    try:
        check_draft(draft, tokenizer)
    except ModelError as error:
        log.warning("%s; the model is served without a draft model", error)
        return None
    return draft.path
