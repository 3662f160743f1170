"""Sampling waterfall, which the instrument Filters draws: the stages in which sampling settings
turn logits into the distribution that a token is drawn from.

The stages are those of the sampler: raw logits → biases and penalties → temperature → top-k → top-p
→ min-p → watermark → draw. The first three change shares, the filters take shares away; what a
filter takes is counted in shares of the distribution after the temperature, as
`gpu.step.Sampled.mass` does. A watermark moves shares among what the filters left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gpu.inspection.requests import Answer, Array
from gpu.reference.sampler import (
    Distribution,
    Greenlist,
    distribution,
    draw,
    draw_order,
    greenlist_within,
    scale_logits,
    uniform,
    within,
)
from gpu.reference.softmax import Doubles, entropy, softmax
from gpu.step import CUTS, Sample

N_FORBIDDEN = 5
"""Most likely forbidden tokens that are listed."""


@dataclass(frozen=True, slots=True)
class WaterfallStage:
    """A stage, which removed tokens of the share `removed` and kept `n_kept` tokens of the share
    `kept`. The stage before kept kept + removed. `entropy`: bits, of what is kept, renormalised.
    """

    name: str
    n_kept: int
    kept: float
    removed: float
    entropy: float


def waterfall(
    logits: npt.ArrayLike,
    context: npt.ArrayLike,
    sample: Sample,
    top: int,
    allowed: npt.NDArray[np.bool_] | None = None,
    also: Sequence[int] = (),
    green: Greenlist | None = None,
) -> Answer:
    """Apply the filters of `sample` to `logits` (vocab_size,) one after another and return what
    each left. `context`: ids of the text so far, of which the run wrote the last `sample.index`.
    `allowed` (vocab_size,): tokens that a grammar allows, which everything is about then; None:
    there is no grammar. `green`: the greenlist of a sample with a watermark.

    info    stages (see `WaterfallStage`), draw (the random number), draw_at (its place on the
            curve below: a watermark changes the order of the draw), chosen, greedy; with a grammar
            also `allowed`: n tokens and their probability by the model alone
    arrays  one entry for each of the `top` most likely tokens and, if not among them, the chosen
            and those of `also` (with a grammar, the allowed ones of them): ids, cut (an index of
            `gpu.step.CUTS`), seen (0 or 1), written (how often by the run) as u32; logit; the
            probabilities raw, penalised (with biases), tempered, marked (of survivors, with the
            bias of a watermark; they add up to what was kept), after (all filters); above and
            marked_above, what the survivors before it have of tempered and marked; low and high,
            where the token's share begins and ends on the cumulative curve of `after`. With a
            grammar also forbidden_ids, forbidden_raw: the most likely tokens that it forbids, and
            their probabilities by the model alone
    """
    whole = np.asarray(logits, np.float64)
    if allowed is not None:
        ids = np.flatnonzero(allowed)
        places = np.flatnonzero(np.isin(ids, also)).tolist()
        inner = greenlist_within(ids, green)
        inside = waterfall(whole[ids], *within(ids, context, sample), top, also=places, green=inner)
        return _of_grammar(inside, whole, ids)
    raw = whole
    chances = distribution(raw, context, sample, green)
    greedy = sample.temperature == 0
    number = 0.0 if greedy else uniform(sample.seed, sample.index)
    chosen = draw(chances, number)
    penalised = softmax(scale_logits(raw, context, replace(sample, temperature=1.0)))
    stages = [*_changes(raw, penalised, chances), *_filters(chances)]
    marked = _marked(chances, stages[-1].kept)
    stages.append(_watermark(stages[-1], marked))
    shown = _shown(chances, top, [chosen, *also])
    info: dict[str, Any] = {
        "stages": [asdict(stage) for stage in stages],
        "draw": number,
        "draw_at": _place_of_draw(chances, chosen, number),
        "chosen": chosen,
        "greedy": greedy,
    }
    tokens = np.asarray(context, np.intp)
    written = tokens[max(0, len(tokens) - sample.index) :]
    counts = {
        "seen": np.isin(shown, tokens).astype(np.uint32),
        "written": np.bincount(written[written >= 0], minlength=len(raw))[shown].astype(np.uint32),
    }
    return Answer(info, _rows(shown, (raw, penalised, marked), chances, counts))


def _of_grammar(inside: Answer, logits: Doubles, ids: npt.NDArray[np.intp]) -> Answer:
    """Return the answer about the allowed tokens `ids` alone as one about the vocabulary."""
    shares = softmax(logits)
    forbidden = np.setdiff1d(np.argsort(-shares, kind="stable")[: len(ids) + N_FORBIDDEN], ids)
    forbidden = forbidden[np.argsort(-shares[forbidden], kind="stable")][:N_FORBIDDEN]
    info = {
        **inside.info,
        "chosen": int(ids[inside.info["chosen"]]),
        "allowed": {"n": len(ids), "probability": float(shares[ids].sum())},
    }
    return Answer(
        info,
        (
            Array.of("ids", ids[inside["ids"]]),
            *(array for array in inside.arrays if array.name != "ids"),
            Array.of("forbidden_ids", forbidden),
            Array.of("forbidden_raw", shares[forbidden]),
        ),
    )


def _changes(raw: Doubles, penalised: Doubles, chances: Distribution) -> list[WaterfallStage]:
    """Return the stages that change shares and remove no token."""
    named = (("logits", softmax(raw)), ("penalty", penalised), ("temperature", chances.before))
    return [WaterfallStage(name, len(raw), 1.0, 0.0, float(entropy(p))) for name, p in named]


def _filters(chances: Distribution) -> list[WaterfallStage]:
    """Return the stages that remove tokens."""
    stages, left = [], 1.0
    for i, name in enumerate(CUTS[1:], 1):
        alive = (chances.cut == 0) | (chances.cut > i)
        removed = chances.mass[i]
        left -= removed
        shares = np.where(alive, chances.before, 0.0)
        bits = float(entropy(shares / shares.sum()))
        stages.append(WaterfallStage(name, int(alive.sum()), left, removed, bits))
    return stages


def _marked(chances: Distribution, kept: float) -> Doubles:
    """Return the shares of the survivors with the bias of a watermark, `kept` in all."""
    alive = np.where(chances.cut == 0, chances.marked, -np.inf)
    return kept * softmax(alive)


def _watermark(before: WaterfallStage, marked: Doubles) -> WaterfallStage:
    """Return the stage that moves shares among the survivors."""
    bits = float(entropy(marked / marked.sum()))
    return WaterfallStage("watermark", before.n_kept, before.kept, 0.0, bits)


def _place_of_draw(chances: Distribution, chosen: int, number: float) -> float:
    """Return where the random number lies on the curve in the order of the likelihood without a
    watermark: in the share of the chosen token, as far from its beginning."""
    order = draw_order(chances)
    place = int(np.flatnonzero(order == chosen)[0])
    within_share = number - float(chances.after[order[:place]].sum())
    at = int(np.flatnonzero(chances.order == chosen)[0])
    return float(chances.after[chances.order[:at]].sum()) + within_share


def _shown(chances: Distribution, top: int, wanted: Sequence[int]) -> npt.NDArray[np.intp]:
    shown = chances.order[:top]
    return np.append(shown, [id for id in dict.fromkeys(wanted) if id not in shown]).astype(np.intp)


def _rows(
    shown: npt.NDArray[np.intp],
    shares: tuple[Doubles, Doubles, Doubles],
    chances: Distribution,
    counts: dict[str, npt.NDArray[np.uint32]],
) -> tuple[Array, ...]:
    """Return the arrays of the answer. `shares`: logits, penalised and marked."""
    raw, penalised, marked = shares
    kept = np.where(chances.cut == 0, chances.before, 0.0)
    high = _cumulative(chances, chances.after)
    columns: dict[str, npt.NDArray[Any]] = {
        "ids": shown,
        "cut": chances.cut[shown],
        **counts,
        "logit": raw[shown],
        "raw": softmax(raw)[shown],
        "penalised": penalised[shown],
        "tempered": chances.before[shown],
        "marked": marked[shown],
        "above": (_cumulative(chances, kept) - kept)[shown],
        "marked_above": (_cumulative(chances, marked) - marked)[shown],
        "after": chances.after[shown],
        "low": (high - chances.after)[shown],
        "high": high[shown],
    }
    return tuple(Array.of(name, values) for name, values in columns.items())


def _cumulative(chances: Distribution, shares: Doubles) -> Doubles:
    """Return the sum of the shares up to each token, most likely first."""
    sums = np.empty(len(shares))
    sums[chances.order] = np.cumsum(shares[chances.order])
    return sums
