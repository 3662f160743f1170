"""`tokenglass reap`: prunes the experts that matter least on a text, and says what that costs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from app import version
from app.config import Settings
from app.models import Model, find_model
from app.progress_line import ProgressLine, fetch_with_line
from app.server import load_engine
from gpu import (
    Engine,
    ExpertScores,
    ModelConfig,
    TextWindow,
    expect_empty,
    expert_scores,
    n_dropped,
    text_perplexity,
    text_windows,
    write_pruned,
)

NOTES = "reap.json"
"""In the written folder: the scores of all experts, and which stayed."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do. `text` is what experts are scored on, `test` what perplexities are measured on,
    `share` that of each layer's experts which goes."""

    text: str
    test: str
    share: float
    out: Path
    window: int
    n_tokens: int


def lines(settings: Settings, plan: Plan) -> Iterator[str]:
    """What there is to say, each line as soon as it is known. Raises what loading a model raises,
    InvalidRequest for a model without experts, for a share that cannot be pruned and for texts that
    are too short, and ModelError for an `out` that cannot be written."""
    model = find_model(settings, must_fit=False)
    config = ModelConfig.from_folder(model.path)
    dropped = n_dropped(config, plan.share)
    expect_empty(plan.out)
    fetch_with_line(model)
    size = min(plan.window, config.context)
    scored, tested = (
        text_windows(model.tokenizer, text, size, plan.n_tokens) for text in (plan.text, plan.test)
    )
    assert config.experts is not None
    yield (
        f"{model.name}: {config.experts.n} experts in each of {len(config.expert_layers)} layers, "
        f"{config.experts.per_token} of them for each token"
    )
    engine = _load(settings, model, model.path, size)
    try:
        before = text_perplexity(engine, tested)
        yield f"perplexity before  {before:.4f}"
        scores = _scores(engine, config, scored)
    finally:
        engine.close()
    kept = scores.kept(dropped)
    yield from _table(scores, kept)
    _write(model.path, plan, scores, kept)
    yield f"written to {plan.out}: {config.experts.n - dropped} experts in each of these layers"
    engine = _load(settings, model, plan.out, size)
    try:
        yield f"perplexity after   {text_perplexity(engine, tested):.4f}"
    finally:
        engine.close()


def _load(settings: Settings, model: Model, path: Path, context: int) -> Engine:
    """`model`, or what was pruned of it at `path`."""
    wanted = replace(settings, context=context, slots=1)
    return load_engine(wanted, path, lambda done, message: None, tokenizer=model.engine_tokenizer)


def _scores(engine: Engine, config: ModelConfig, cut: Sequence[TextWindow]) -> ExpertScores:
    total, line = sum(len(window.ids) for window in cut), ProgressLine()
    try:
        return expert_scores(
            engine, config, cut, lambda n: line.show(f"scored {n:,} of {total:,} tokens")
        )
    finally:
        line.close()


def _table(scores: ExpertScores, kept: Mapping[int, Sequence[int]]) -> Iterator[str]:
    """Of each layer: what stays at least, what goes at most, and which experts go."""
    yield "layer  lowest score kept  highest dropped  dropped"
    for layer, means, counts in zip(scores.layers, scores.means, scores.counts, strict=True):
        stay = list(kept[layer])
        gone = [expert for expert in range(len(means)) if expert not in kept[layer]]
        named = " ".join(f"{e}" if counts[e] else f"{e} (never chosen)" for e in gone)
        yield f"{layer:5}  {means[stay].min():17.4g}  {means[gone].max():15.4g}  {named}"


def _write(
    source: Path, plan: Plan, scores: ExpertScores, kept: Mapping[int, Sequence[int]]
) -> None:
    line = ProgressLine()
    try:
        notes = {NOTES: json.dumps(_notes(plan, scores, kept), indent=1) + "\n"}
        write_pruned(source, plan.out, kept, notes, lambda done, message: line.show(message))
    finally:
        line.close()


def _notes(
    plan: Plan, scores: ExpertScores, kept: Mapping[int, Sequence[int]]
) -> dict[str, object]:
    """How the folder was made."""
    layers = zip(scores.layers, scores.means.tolist(), scores.counts.tolist(), strict=True)
    return {
        "method": "REAP (arXiv 2510.13999)",
        "made_by": f"tokenglass {version()}",
        "share": plan.share,
        "tokens": plan.n_tokens,
        "window": plan.window,
        "layers": [
            {"layer": layer, "kept": list(kept[layer]), "scores": means, "tokens": counts}
            for layer, means, counts in layers
        ],
    }
