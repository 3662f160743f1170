"""`tokenglass perplexity`: measure the loss of quality of each storage type of the weights and of
the KV cache on a text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal, cast, get_args

from app.config import Dtype, KvDtype, Settings
from app.engine.loading import load_engine
from app.models.find_model import Model
from app.models.progress_line import fetch_with_line, find_with_line
from gpu import (
    Engine,
    ModelConfig,
    Perplexity,
    PerplexityResult,
    TextSpan,
    perplexities,
    text_spans,
    token_bytes_by_format,
)

KV_REFERENCE: Literal["f16"] = "f16"
"""Storage type of the KV cache that others are compared with, and of the weights meanwhile."""


def report_lines(
    settings: Settings,
    text: str,
    dtypes: Sequence[str],
    kv_dtypes: Sequence[str],
    span: int,
    n_tokens: int,
) -> Iterator[str]:
    """Yield the lines of the tables as soon as they are measured: one table for weights stored as
    `dtypes`, one for KV caches stored as `kv_dtypes`; none for an empty sequence, and all storage
    types that backend and model allow if both are empty.

    Raises the errors of loading a model, and InvalidRequest if text or span is too short.
    """
    model = find_with_line(settings, must_fit=False)
    fetch_with_line(model)
    if not dtypes and not kv_dtypes:
        dtypes, kv_dtypes = get_args(Dtype), _kv_dtypes(settings, model)
    size = min(span, ModelConfig.from_folder(model.path).context)
    spans = text_spans(model.tokenizer, text, size, n_tokens)
    counted = sum(part.n_counted for part in spans)
    yield f"{model.name}: {counted:,} tokens, in {len(spans):,} spans of up to {size} tokens"
    settings = replace(settings, context=size, max_num_seqs=1)
    if dtypes:
        yield from _weight_rows(settings, model, spans, dtypes)
    if kv_dtypes:
        yield from _kv_cache_rows(settings, model, spans, kv_dtypes)


def _kv_dtypes(settings: Settings, model: Model) -> tuple[str, ...]:
    """Return the storage types that backend and model allow, from the reference downwards."""
    if settings.backend == "torch":
        return ()
    n_bytes = token_bytes_by_format(ModelConfig.from_folder(model.path))
    return tuple(name for name in n_bytes if n_bytes[name] <= n_bytes[KV_REFERENCE])


def _weight_rows(
    settings: Settings, model: Model, spans: Sequence[TextSpan], dtypes: Sequence[str]
) -> Iterator[str]:
    yield "dtype  perplexity    mean KL from f32  same first choice"
    activations: dict[str, str] = {}

    def load(dtype: str) -> Engine:
        engine = _load(replace(settings, dtype=cast(Dtype, dtype)), model)
        activations[dtype] = engine.info.activations
        return engine

    for result in perplexities(load, spans, dtypes):
        note = "  q8 activations" if activations[result.dtype] == "q8" else ""
        yield f"{result.dtype:5}  {_figures(result)}{note}"


def _kv_cache_rows(
    settings: Settings, model: Model, spans: Sequence[TextSpan], kv_dtypes: Sequence[str]
) -> Iterator[str]:
    """Yield a row for all positions, then one for each range of positions."""
    n_bytes = token_bytes_by_format(ModelConfig.from_folder(model.path))
    yield f"KV cache, with weights in {KV_REFERENCE}:"
    yield (
        "kv dtype  bytes/token    positions  "
        f"perplexity    mean KL from {KV_REFERENCE}  same first choice"
    )

    def load(kv_dtype: str) -> Engine:
        return _load(replace(settings, dtype=KV_REFERENCE, kv_dtype=cast(KvDtype, kv_dtype)), model)

    for result in perplexities(load, spans, kv_dtypes, reference=KV_REFERENCE):
        yield f"{result.dtype:8}  {n_bytes[result.dtype]:11,}  {'all':>11}  {_figures(result)}"
        yield from _position_rows(result)


def _position_rows(result: Perplexity) -> Iterator[str]:
    if len(result.by_position) > 1:
        for first, end, part in result.by_position:
            yield f"{'':8}  {'':11}  {f'{first}–{end - 1}':>11}  {_figures(part)}"


def _load(settings: Settings, model: Model) -> Engine:
    return load_engine(settings, model.source, lambda done, message: None)


def _figures(result: PerplexityResult) -> str:
    kl, same = "–", "–"
    if result.divergence is not None:
        kl, same = f"{result.divergence.kl:.3e} nats", f"{result.divergence.same_top:.2%}"
    return f"{result.perplexity:10.4f}  {kl:>18}  {same:>17}"
