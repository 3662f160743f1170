"""Find the draft model of `--draft`: named as any model is, or `bundled`, which drafts for the
bundled models."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path

from app import tale
from app.config import Settings
from app.engine_client import Tokenizer
from app.load_options import load_options
from app.models.memory import dtype_of_files
from app.models.progress_line import fetch_with_line, find_with_line
from gpu import AUTO_DTYPE, DtypeChoice, Footprint, ModelError, expect_same_vocabulary

BUNDLED = "bundled"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Draft:
    """Draft model whose files are on this machine.

    tokenizer  None for the bundled one, which has that of the bundled models
    dtype      storage type of its weights
    n_bytes    what it needs on the device
    """

    path: Path
    tokenizer: Tokenizer | None
    dtype: DtypeChoice
    n_bytes: int


def find_draft(settings: Settings) -> Draft | None:
    """Return the draft model that the settings name, downloaded if it is one of the hub; None if
    they name none. Raises what `find_model` raises."""
    if settings.draft is None:
        return None
    path, tokenizer = tale.draft_dir(), None
    if settings.draft != BUNDLED:
        model = find_with_line(
            replace(settings, model=settings.draft, revision=None), must_fit=False
        )
        fetch_with_line(model)
        path, tokenizer = model.path, model.tokenizer
    dtype = DtypeChoice(settings.dtype)
    if settings.dtype == AUTO_DTYPE:
        dtype = dtype_of_files(path)
    options = load_options(settings, dtype=dtype)
    options = replace(options, context=None, kv_dtype=None, kv_offload_bytes=0, cache_reuse=0)
    return Draft(path, tokenizer, dtype, Footprint.of(path, options).total)


def check_draft(draft: Draft, model: Path, tokenizer: Tokenizer) -> None:
    """Raise ModelError unless the draft model has the tokens of the model at `model`, whose
    tokenizer is `tokenizer`."""
    if draft.tokenizer is not None:
        expect_same_vocabulary(tokenizer, draft.path, draft.tokenizer)
    elif tale.name_of(model) is None:
        raise ModelError(
            f"--draft {BUNDLED} drafts for the bundled models only; name a small model of the same "
            "family, or leave out --draft"
        )


def compatible_draft(draft: Draft, model: Path, tokenizer: Tokenizer) -> Path | None:
    """Return the path of the draft model if it fits the model; else log a warning."""
    try:
        check_draft(draft, model, tokenizer)
    except ModelError as error:
        log.warning("%s; the model is served without a draft model", error)
        return None
    return draft.path
