"""`tokenglass perplexity`: what each storage type, of weights and of the KV cache, costs a model on
a text, as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal, cast

from app.config import Dtype, KvDtype, Settings
from app.models import Model, find_model
from app.progress_line import fetch_with_line
from app.server import load_engine
from gpu import (
    Engine,
    Measured,
    ModelConfig,
    Perplexity,
    TextWindow,
    perplexities,
    text_windows,
    token_bytes_by_format,
)

KV_REFERENCE: Literal["f16"] = "f16"
"""What other KV caches are measured beside, and how weights are stored meanwhile."""


def lines(
    settings: Settings,
    text: str,
    dtypes: Sequence[str],
    kv_dtypes: Sequence[str],
    window: int,
    n_tokens: int,
) -> Iterator[str]:
    """The lines of the tables, each as soon as it is measured: of weights stored as `dtypes`, and
    of KV caches stored as `kv_dtypes`; none where there are none. Raises what loading a model
    raises, and InvalidRequest for a text or a window that is too short."""
    model = find_model(settings, must_fit=False)
    fetch_with_line(model)
    size = min(window, ModelConfig.from_folder(model.path).context)
    cut = text_windows(model.tokenizer, text, size, n_tokens)
    counted = sum(part.n_counted for part in cut)
    yield f"{model.name}: {counted:,} tokens, in {len(cut):,} windows of up to {size} tokens"
    settings = replace(settings, context=size, slots=1)
    if dtypes:
        yield from _of_weights(settings, model, cut, dtypes)
    if kv_dtypes:
        yield from _of_caches(settings, model, cut, kv_dtypes)


def default_kv_dtypes(settings: Settings) -> tuple[str, ...]:
    """Those that the backend and this model's heads allow, from the reference down."""
    if settings.backend == "torch":
        return ()
    model = find_model(settings, must_fit=False)
    there = token_bytes_by_format(ModelConfig.from_folder(model.path))
    return tuple(name for name in there if there[name] <= there[KV_REFERENCE])


def _of_weights(
    settings: Settings, model: Model, cut: Sequence[TextWindow], dtypes: Sequence[str]
) -> Iterator[str]:
    yield "dtype  perplexity    mean KL from f32  same first choice"
    given: dict[str, str] = {}

    def load(dtype: str) -> Engine:
        engine = _load(replace(settings, dtype=cast(Dtype, dtype)), model)
        given[dtype] = engine.info.products
        return engine

    for found in perplexities(load, cut, dtypes):
        of_bytes = "  products of bytes" if given[found.dtype] == "bytes" else ""
        yield f"{found.dtype:5}  {_figures(found)}{of_bytes}"


def _of_caches(
    settings: Settings, model: Model, cut: Sequence[TextWindow], kv_dtypes: Sequence[str]
) -> Iterator[str]:
    """A row for all positions, then one for each part of the windows."""
    n_bytes = token_bytes_by_format(ModelConfig.from_folder(model.path))
    yield f"KV cache, with weights in {KV_REFERENCE}:"
    yield (
        "kv dtype  bytes/token    positions  "
        f"perplexity    mean KL from {KV_REFERENCE}  same first choice"
    )

    def load(kv_dtype: str) -> Engine:
        wanted = replace(settings, dtype=KV_REFERENCE, kv_dtype=cast(KvDtype, kv_dtype))
        return _load(wanted, model)

    for found in perplexities(load, cut, kv_dtypes, reference=KV_REFERENCE):
        yield f"{found.dtype:8}  {n_bytes[found.dtype]:11,}  {'all':>11}  {_figures(found)}"
        yield from _of_spans(found)


def _of_spans(found: Perplexity) -> Iterator[str]:
    if len(found.spans) > 1:
        for first, end, part in found.spans:
            yield f"{'':8}  {'':11}  {f'{first}–{end - 1}':>11}  {_figures(part)}"


def _load(settings: Settings, model: Model) -> Engine:
    return load_engine(
        settings,
        model.path,
        lambda done, message: None,
        name=model.name,
        tokenizer=model.engine_tokenizer,
    )


def _figures(found: Measured) -> str:
    kl, same = "–", "–"
    if found.divergence is not None:
        kl, same = f"{found.divergence.kl:.3e} nats", f"{found.divergence.same_top:.2%}"
    return f"{found.perplexity:10.4f}  {kl:>18}  {same:>17}"
