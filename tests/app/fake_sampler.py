"""Plausible logits and layer statistics for the fake engine, and a real sampler.

Everything depends on the arguments only: the same seed and settings give the same text.
"""

from __future__ import annotations

import math
from collections import Counter

import msgspec
import numpy as np
import numpy.typing as npt

from gpu.events import CandidateText, ExpertChoice, LayerStats, TokenStats, Watermark
from gpu.sampling_params import SamplingParams
from gpu.watermark.greenlist import Greenlists, WatermarkConfig, in_bitmask
from tests.app.fake_tokenizer import FIRST_WORD, FakeTokenizer

N_CANDIDATES = 20
GREENLISTS: dict[int, Greenlists] = {}
"""Greenlists by the size of the vocabulary."""
Floats = npt.NDArray[np.float64]


def logits(wanted: int, context: int, vocab_size: int) -> Floats:
    """Return logits (vocab_size,) with `wanted` the likeliest, by a margin that varies."""
    rng = np.random.default_rng([7, context, wanted])
    values = rng.normal(0.0, 1.6, vocab_size)
    values[:FIRST_WORD] -= 9.0  # bytes and special tokens are unlikely
    values[wanted] = values.max() + rng.choice([0.15, 0.8, 2.0, 4.0, 7.0])
    return values


def draw(
    raw: Floats,
    params: SamplingParams,
    seed: int,
    index: int,
    ids: list[int],
    words: FakeTokenizer,
) -> dict[str, object]:
    """Draw token `index` of a run after `ids`; return the fields of `gpu.events.Token` on how it
    was chosen."""
    scaled = raw.copy()
    for each in params.logit_bias:
        scaled[each.id] += each.bias
    for id in set(ids):
        penalty = params.repetition_penalty
        scaled[id] = scaled[id] / penalty if scaled[id] > 0 else scaled[id] * penalty
    for id, times in Counter(ids[max(0, len(ids) - index) :]).items():
        scaled[id] -= params.frequency_penalty * times + params.presence_penalty
    greedy = params.is_greedy
    if not greedy:
        scaled /= params.temperature
    before = softmax(scaled)
    order = np.argsort(-scaled, kind="stable")
    cut = [""] * len(order) if greedy else removed_by(before, order, params)
    kept = np.arange(len(order)) == 0 if greedy else np.array([name == "" for name in cut])
    mass = (1.0, 0.0, 0.0, 0.0) if greedy else masses(before[order], cut)
    after = np.where(kept, before[order], 0.0)
    after /= after.sum()
    mark = WatermarkConfig.of(params)
    if mark is not None:
        bitmask = GREENLISTS.setdefault(vocab := len(raw), Greenlists(vocab)).bitmask(mark, ids)
        green = np.array([in_bitmask(bitmask, int(id)) for id in order])
        share = float(after[green].sum())
        after *= np.exp(params.watermark_bias * green)
        after /= after.sum()
    uniform = 0.0 if greedy else float(np.random.default_rng([seed % 2**63, index]).random())
    rank = min(int(np.searchsorted(np.cumsum(after), uniform, side="right")), int(kept.sum()) - 1)
    chosen = int(order[rank])
    return {
        "id": chosen,
        "logprob": float(math.log(softmax(raw)[chosen])),
        "probability": float(after[rank]),
        "rank": rank,
        "n_kept": int(kept.sum()),
        "watermark": msgspec.UNSET if mark is None else Watermark(bool(green[rank]), share),
        "draw": uniform,
        "mass": mass,
        "candidates": tuple(
            CandidateText(
                int(id), words.piece(int(id)), float(before[id]), float(after[at]), cut[at]
            )
            for at, id in enumerate(order[:N_CANDIDATES])
        ),
    }


def softmax(values: Floats) -> Floats:
    exps = np.exp(values - values.max())
    return np.asarray(exps / exps.sum())


def masses(before: Floats, cut: list[str]) -> tuple[float, ...]:
    """Return the share of the tokens that are kept, and of those that each filter removes."""
    return tuple(
        float(sum(share for share, name in zip(before, cut, strict=True) if name == which))
        for which in ("", "top_k", "top_p", "min_p")
    )


def removed_by(before: Floats, order: npt.NDArray[np.intp], params: SamplingParams) -> list[str]:
    """Return for each token in `order` the filter that removes it; "" if none does."""
    names: list[str] = []
    total = 0.0
    for at, id in enumerate(order):
        name = ""
        if params.top_k and at >= params.top_k:
            name = "top_k"
        elif params.top_p < 1 and total >= params.top_p and at > 0:
            name = "top_p"
        elif before[id] < params.min_p * before[order[0]]:
            name = "min_p"
        total += float(before[id])
        names.append(name)
    return names


def stats(position: int, id: int, n_layers: int, n_heads: int, n_rows: int) -> TokenStats:
    """Return layer statistics of one token: norms grow with depth, entropies with position."""
    rng = np.random.default_rng([11, position, id])
    widest = math.log2(position + 2)
    layers = []
    for layer in range(n_layers):
        depth = (layer + 1) / n_layers
        residual = 4 + 26 * depth**1.4 * float(rng.uniform(0.8, 1.2))
        layers.append(
            LayerStats(
                residual=residual,
                attention=residual * float(rng.uniform(0.08, 0.35)),
                mlp=residual * float(rng.uniform(0.15, 0.6)),
                attention_cosine=float(rng.uniform(-0.3, 0.3)),
                mlp_cosine=float(rng.uniform(-0.5, 0.4)),
                entropy=tuple((widest * rng.beta(2, 1 + 3 * depth, n_heads)).tolist()),
                attention_ms=float(rng.uniform(0.10, 0.18)),
                mlp_ms=float(rng.uniform(0.20, 0.28)),
            )
        )
    return TokenStats(
        position=position,
        embedding=float(rng.uniform(0.8, 2.4)),
        layers=tuple(layers),
        n_rows=n_rows,
        embed_ms=0.02,
        head_ms=float(rng.uniform(0.3, 0.5)),
    )


def routes(position: int, n_layers: int, n_experts: int) -> tuple[ExpertChoice, ...]:
    """Return two experts for each layer but the first; some are likelier."""
    found = []
    for layer in range(1, n_layers):
        rng = np.random.default_rng([13, position, layer])
        liking = np.geomspace(1, 0.2, n_experts)
        experts = rng.choice(n_experts, 2, replace=False, p=liking / liking.sum())
        first = float(rng.uniform(0.5, 0.9))
        found.append(ExpertChoice(layer, tuple(experts.tolist()), (first, 1 - first)))
    return tuple(found)
