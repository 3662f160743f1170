"""`tokenglass perplexity`: what each storage type costs a model on a text, as a table."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from app.config import Dtype, Settings
from app.models import find_model
from app.progress_line import fetch_with_line
from app.server import load_engine
from gpu import Engine, ModelConfig, Perplexity, perplexities, text_windows


def lines(
    settings: Settings, text: str, dtypes: Sequence[str], window: int, n_tokens: int
) -> Iterator[str]:
    """The lines of the table, each as soon as it is measured. Raises what loading a model raises,
    and InvalidRequest for a text or a window that is too short."""
    model = find_model(settings, must_fit=False)
    fetch_with_line(model)
    size = min(window, ModelConfig.from_folder(model.path).context)
    cut = text_windows(model.tokenizer, text, size, n_tokens)
    counted = sum(part.n_counted for part in cut)
    yield f"{model.name}: {counted:,} tokens, in {len(cut):,} windows of up to {size} tokens"
    yield "dtype  perplexity    mean KL from f32  same first choice"
    load = functools.partial(_load, settings, model.path, model.name, size)
    for found in perplexities(load, cut, dtypes):
        yield _row(found)


def _load(settings: Settings, path: Path, name: str, context: int, dtype: str) -> Engine:
    wanted = replace(settings, dtype=cast(Dtype, dtype), context=context, slots=1)
    return load_engine(wanted, path, lambda done, message: None, name=name)


def _row(found: Perplexity) -> str:
    kl, same = "–", "–"
    if found.divergence is not None:
        kl, same = f"{found.divergence.kl:.3e} nats", f"{found.divergence.same_top:.2%}"
    return f"{found.dtype:5}  {found.perplexity:10.4f}  {kl:>18}  {same:>17}"
