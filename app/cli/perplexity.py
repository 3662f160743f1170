"""`tokenglass perplexity`: measure what each storage type of the weights and of the KV cache costs
on a text, and what a distilled model costs in comparison."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast, get_args

import click

from app.cli.errors import errors, read_text
from app.cli.options import settings_options, span_option
from app.config import Dtype, KvDtype, Settings
from app.engine.loading import load_engine
from app.models.drafts import Draft, check_draft, find_draft
from app.models.find_model import Model
from app.models.model_source import ModelSource
from app.models.progress_line import fetch_with_line, find_with_line
from gpu import (
    Engine,
    ModelConfig,
    ModelError,
    Perplexity,
    PerplexityResult,
    Request,
    SamplingParams,
    TextSpan,
    Tokenizer,
    perplexities,
    text_spans,
    token_bytes_by_format,
)

KV_REFERENCE: Literal["f16"] = "f16"
"""Storage type that KV caches are compared with; meanwhile the weights are stored in it, too."""
DRAFT = "draft"
"""Row of the draft model, among the storage types."""
SPEED_TOKENS = 32
"""Tokens that are written to measure the speed."""


@click.command()
@settings_options(
    ("model", "revision", "backend", "adapter", "expert_slots", "activations", "draft")
)
@click.option(
    "--text", "file", required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option(
    "--dtype", "dtypes", multiple=True, type=click.Choice(get_args(Dtype)),
    help="Storage type of the weights to compare with f32. May be repeated.",
)  # fmt: skip
@click.option(
    "--kv-dtype", "kv_dtypes", multiple=True, type=click.Choice(get_args(KvDtype)),
    help="Storage type of the KV cache to compare with f16, with f16 weights. May be repeated.",
)  # fmt: skip
@span_option
@click.option(
    "--tokens", type=click.IntRange(2), default=2048, show_default=True,
    help="Maximum tokens of the text. Their logits are kept in a temporary file.",
)  # fmt: skip
def perplexity(
    file: Path,
    dtypes: tuple[str, ...],
    kv_dtypes: tuple[str, ...],
    span: int,
    tokens: int,
    **values: Any,
) -> None:
    """Measure the loss of quality of each storage type of the weights and of the KV cache on a
    text: perplexity, KL divergence from f32 weights or an f16 cache, and how often the likeliest
    token is the same. For weights, also their size, bits per byte of the text, by which models with
    other tokens can be compared, and tokens written per second. For caches, also the bytes per
    token, and all figures by position (0 to 127, 128 to 511, … if --span is long enough). Without
    --dtype and --kv-dtype, all are measured.

    --draft adds a row for the draft model: so a model that was distilled from a large one can be
    compared with the large one in fewer bits.

    With --activations q8, the rows of q8 and q4 are measured with activations quantised to 8 bits.

    The text (UTF-8) is read in spans that do not overlap.
    """
    text = read_text(file)
    with errors():
        for line in report_lines(Settings(**values), text, dtypes, kv_dtypes, span, tokens):
            click.echo(line)


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
    draft = find_draft(settings)
    model = find_with_line(settings, must_fit=False)
    if draft is not None:
        check_draft(draft, model.path, model.tokenizer)
        _expect_same_logits(draft, model)
    fetch_with_line(model)
    if not dtypes and not kv_dtypes:
        dtypes, kv_dtypes = get_args(Dtype), _kv_dtypes(settings, model)
    size = min(span, ModelConfig.from_folder(model.path).context)
    spans = text_spans(model.tokenizer, text, size, n_tokens)
    counted = sum(part.n_counted for part in spans)
    yield f"{model.name}: {counted:,} tokens, in {len(spans):,} spans of up to {size} tokens"
    settings = replace(settings, context=size, max_num_seqs=1)
    if dtypes or draft is not None:
        yield from _weight_rows(settings, model, draft, spans, dtypes)
    if kv_dtypes:
        yield from _kv_cache_rows(settings, model, spans, kv_dtypes)


def _expect_same_logits(draft: Draft, model: Model) -> None:
    """Raise ModelError for models with the same tokens whose vocabularies are padded unequally: as
    Qwen2.5 does, small and large."""
    sizes = [ModelConfig.from_folder(path).vocab_size for path in (draft.path, model.path)]
    if sizes[0] != sizes[1]:
        raise ModelError(
            f"the draft model has {sizes[0]:,} logits and the model {sizes[1]:,}, so their "
            "distributions cannot be compared; use a draft model with as many, or leave out --draft"
        )


def _kv_dtypes(settings: Settings, model: Model) -> tuple[str, ...]:
    """Return the storage types that backend and model allow, from the reference downwards."""
    if settings.backend == "torch":
        return ()
    n_bytes = token_bytes_by_format(ModelConfig.from_folder(model.path))
    return tuple(name for name in n_bytes if n_bytes[name] <= n_bytes[KV_REFERENCE])


def _weight_rows(
    settings: Settings,
    model: Model,
    draft: Draft | None,
    spans: Sequence[TextSpan],
    dtypes: Sequence[str],
) -> Iterator[str]:
    yield (
        "dtype     weights  tokens/s  bits/byte  perplexity    mean KL from f32  same first choice"
    )
    counted = [model.tokenizer.decode(span.ids[span.first :]) for span in spans]
    n_bytes = sum(len(text.encode()) for text in counted)
    loaded: dict[str, tuple[str, str]] = {}

    def load(dtype: str) -> Engine:
        if dtype == DRAFT and draft is not None:
            tokenizer = model.source.tokenizer or Tokenizer.load(model.path)
            source = ModelSource(draft.path, DRAFT, tokenizer, draft.dtype)
            own = replace(settings, dtype="auto")
        else:
            source, own = model.source, replace(settings, dtype=cast(Dtype, dtype))
        engine = load_engine(own, source, lambda done, message: None)
        note = "  q8 activations" if engine.info.activations == "q8" else ""
        size = f"{engine.info.memory.weights / 1e6:,.1f} MB"
        loaded[dtype] = f"{dtype:5} {size:>11}  {_speed(engine, spans[0]):>8}", note
        return engine

    for result in perplexities(load, spans, (*dtypes, *[DRAFT] * (draft is not None))):
        head, note = loaded[result.dtype]
        bits = result.n_tokens * math.log2(result.perplexity) / n_bytes
        yield f"{head}  {bits:9.4f}  {_figures(result)}{note}"


def _speed(engine: Engine, span: TextSpan) -> str:
    """Return the tokens per second that an engine writes after the first half of a span; the second
    time, when its kernels are compiled."""
    begin = list(span.ids[: max(1, len(span.ids) // 2)])
    n = min(SPEED_TOKENS, len(span.ids) - len(begin))
    params = SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True)
    for _ in range(2):
        run = engine.submit(Request(begin, params))
        for _token in run:
            pass
    return f"{run.done.timings.predicted_per_second:.1f}" if run.done and n > 1 else "–"


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
        own = replace(settings, dtype=KV_REFERENCE, kv_dtype=cast(KvDtype, kv_dtype))
        return load_engine(own, model.source, lambda done, message: None)

    for result in perplexities(load, spans, kv_dtypes, reference=KV_REFERENCE):
        yield f"{result.dtype:8}  {n_bytes[result.dtype]:11,}  {'all':>11}  {_figures(result)}"
        yield from _position_rows(result)


def _position_rows(result: Perplexity) -> Iterator[str]:
    if len(result.by_position) > 1:
        for first, end, part in result.by_position:
            yield f"{'':8}  {'':11}  {f'{first}–{end - 1}':>11}  {_figures(part)}"


def _figures(result: PerplexityResult) -> str:
    kl, same = "–", "–"
    if result.divergence is not None:
        kl, same = f"{result.divergence.kl:.3e} nats", f"{result.divergence.same_top:.2%}"
    return f"{result.perplexity:10.4f}  {kl:>18}  {same:>17}"
