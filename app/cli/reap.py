"""`tokenglass reap`: prune the experts that matter least on a text, and measure the loss."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from app import version
from app.cli.errors import errors, read_text
from app.cli.options import FiniteRange, settings_options, span_option
from app.config import Settings
from app.engine.loading import load_engine
from app.models.model_source import ModelSource
from app.models.progress_line import ProgressLine, fetch_with_line, find_with_line
from gpu import (
    Engine,
    ExpertScores,
    ModelConfig,
    TextSpan,
    expect_empty,
    expert_scores,
    n_dropped,
    text_perplexity,
    text_spans,
    write_pruned,
)

REPORT_FILE = "reap.json"
"""File in the written folder with the scores of all experts and the experts that were kept."""


@click.command()
@settings_options(("model", "revision", "dtype", "backend", "adapter", "expert_slots"))
@click.option(
    "--text", "file", required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Text (UTF-8) on which experts are scored; it should resemble the intended use.",
)  # fmt: skip
@click.option(
    "--test", "test_file", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Text on which perplexities are measured. Default: --text, which flatters the result.",
)  # fmt: skip
@click.option(
    "--share", type=FiniteRange(0, 1), default=0.25, show_default=True,
    help="Share of each layer's experts to prune.",
)  # fmt: skip
@click.option(
    "--out", required=True, type=click.Path(path_type=Path),
    help="Folder to write the smaller model to; it must be new or empty.",
)  # fmt: skip
@span_option
@click.option(
    "--tokens", type=click.IntRange(2), default=8192, show_default=True,
    help="Maximum tokens of each text.",
)  # fmt: skip
def reap(
    file: Path,
    test_file: Path | None,
    share: float,
    out: Path,
    span: int,
    tokens: int,
    **values: Any,
) -> None:
    """Prune the experts that matter least on a text from a mixture-of-experts model (REAP,
    arXiv 2510.13999), and write the rest as a smaller model.

    An expert's score is the mean of gate weight x norm of its output over the tokens routed to it.
    The weights are copied as they were saved; --dtype applies to scoring and to the perplexities.
    """
    text = read_text(file)
    test = text if test_file is None else read_text(test_file)
    with errors():
        for line in report_lines(
            Settings(**values), PruneOptions(text, test, share, out, span, tokens)
        ):
            click.echo(line)


@dataclass(frozen=True, slots=True)
class PruneOptions:
    """Options of pruning.

    text      text on which experts are scored
    test      text on which perplexities are measured
    share     share of each layer's experts to prune
    out       folder to write the model to
    span      tokens per span of text
    n_tokens  limit on the tokens of each text
    """

    text: str
    test: str
    share: float
    out: Path
    span: int
    n_tokens: int


def report_lines(settings: Settings, options: PruneOptions) -> Iterator[str]:
    """Prune the model; yield the lines of the report as soon as they are known.

    Raises the errors of loading a model, InvalidRequest for a model without experts, a share that
    cannot be pruned or too short a text, and ModelError if `out` cannot be written.
    """
    model = find_with_line(settings, must_fit=False)
    config = ModelConfig.from_folder(model.path)
    dropped = n_dropped(config, options.share)
    expect_empty(options.out)
    fetch_with_line(model)
    size = min(options.span, config.context)
    scored, tested = (
        text_spans(model.tokenizer, text, size, options.n_tokens)
        for text in (options.text, options.test)
    )
    assert config.experts is not None
    yield (
        f"{model.name}: {config.experts.n_experts} experts in each of "
        f"{len(config.expert_layers)} layers, "
        f"{config.experts.experts_per_token} of them for each token"
    )
    engine = _load_engine(settings, model.source, size)
    try:
        before = text_perplexity(engine, tested)
        yield f"perplexity before  {before:.4f}"
        scores = _scores(engine, config, scored)
    finally:
        engine.close()
    kept = scores.kept(dropped)
    yield from _table(scores, kept)
    _write(model.path, options, scores, kept)
    left = config.experts.n_experts - dropped
    yield f"written to {options.out}: {left} experts in each of these layers"
    engine = _load_engine(settings, replace(model.source, path=options.out, name=None), size)
    try:
        yield f"perplexity after   {text_perplexity(engine, tested):.4f}"
    finally:
        engine.close()


def _load_engine(settings: Settings, source: ModelSource, context: int) -> Engine:
    settings = replace(settings, context=context, max_num_seqs=1)
    return load_engine(settings, source, lambda done, message: None)


def _scores(engine: Engine, config: ModelConfig, spans: Sequence[TextSpan]) -> ExpertScores:
    total, line = sum(len(span.ids) for span in spans), ProgressLine()
    try:
        return expert_scores(
            engine, config, spans, lambda n: line.show(f"scored {n:,} of {total:,} tokens")
        )
    finally:
        line.close()


def _table(scores: ExpertScores, kept: Mapping[int, Sequence[int]]) -> Iterator[str]:
    """Yield per layer: lowest score kept, highest score dropped, and the dropped experts."""
    yield "layer  lowest score kept  highest dropped  dropped"
    for layer, means, counts in zip(scores.layers, scores.means, scores.counts, strict=True):
        kept_experts = list(kept[layer])
        dropped = [expert for expert in range(len(means)) if expert not in kept[layer]]
        named = " ".join(f"{e}" if counts[e] else f"{e} (never chosen)" for e in dropped)
        yield f"{layer:5}  {means[kept_experts].min():17.4g}  {means[dropped].max():15.4g}  {named}"


def _write(
    source: Path, options: PruneOptions, scores: ExpertScores, kept: Mapping[int, Sequence[int]]
) -> None:
    line = ProgressLine()
    try:
        notes = {REPORT_FILE: json.dumps(_report(options, scores, kept), indent=1) + "\n"}
        write_pruned(source, options.out, kept, notes, lambda done, message: line.show(message))
    finally:
        line.close()


def _report(
    options: PruneOptions, scores: ExpertScores, kept: Mapping[int, Sequence[int]]
) -> dict[str, object]:
    """Return the content of `REPORT_FILE`."""
    layers = zip(scores.layers, scores.means.tolist(), scores.counts.tolist(), strict=True)
    return {
        "method": "REAP (arXiv 2510.13999)",
        "made_by": f"tokenglass {version()}",
        "share": options.share,
        "tokens": options.n_tokens,
        "span": options.span,
        "layers": [
            {"layer": layer, "kept": list(kept[layer]), "scores": means, "tokens": counts}
            for layer, means, counts in layers
        ],
    }
