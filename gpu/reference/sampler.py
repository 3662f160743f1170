"""Sampler in NumPy and double precision: penalties, temperature, top-k, top-p, min-p and the draw;
the reference of every other sampler.

Biases → penalties → `temperature` → `top_k` → `top_p` → `min_p` → watermark → draw. The three
filters are thresholds on the scaled logit; tokens that tie with a threshold survive. The draw
inverts the cumulative distribution of the survivors, most likely first, ties by id, at a number
that depends on (seed, index) alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec
import numpy as np
import numpy.typing as npt

from gpu.reference.softmax import Doubles, log_softmax, softmax
from gpu.step import CUTS, MAX_TIMES_WRITTEN, N_CANDIDATES, Candidate, Sample, Sampled

WORD = 0xFFFFFFFF
PHILOX_M = (0xD2511F53, 0xCD9E8D57)
PHILOX_W = (0x9E3779B9, 0xBB67AE85)
PHILOX_ROUNDS = 10


def philox(key: tuple[int, int], counter: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Return four random 32-bit words by Philox-4x32-10 (Salmon, Moraes, Dror, Shaw 2011,
    "Parallel random numbers: as easy as 1, 2, 3")."""
    k0, k1 = key
    c0, c1, c2, c3 = counter
    for _ in range(PHILOX_ROUNDS):
        product0, product1 = PHILOX_M[0] * c0, PHILOX_M[1] * c2
        c0, c1, c2, c3 = (
            (product1 >> 32) ^ c1 ^ k0,
            product1 & WORD,
            (product0 >> 32) ^ c3 ^ k1,
            product0 & WORD,
        )
        k0, k1 = (k0 + PHILOX_W[0]) & WORD, (k1 + PHILOX_W[1]) & WORD
    return c0, c1, c2, c3


def uniform(seed: int, index: int) -> float:
    """Return the number in [0, 1) that draws token `index` of a run: a multiple of 2^-24, exact in
    float32. `seed` has 64 bits, `index` 32."""
    word = philox((seed & WORD, seed >> 32), (index, 0, 0, 0))[0]
    return (word >> 8) * 2.0**-24


@dataclass(frozen=True, slots=True)
class Distribution:
    """Distribution of one row of logits before and after the filters. Arrays are (vocab_size,).

    order   all ids, most likely first, ties by id
    scaled  logits after biases, penalties and temperature (greedy: temperature 1)
    before  their softmax
    cut     index into `CUTS`: the first filter that removed the token, 0 for none
    kept    survivors: tokens not cut; greedy: the most likely one only
    after   probability of the draw
    mass    probability (`before`) of the survivors, and cut by each filter: an entry for each of
            `CUTS`; greedy: 1 and zeros
    marked  `scaled`, with the bias of a watermark added to green tokens: the draw goes by it
    green   probability of the green survivors before that bias (greedy: of all green tokens); 0
            without a watermark
    """

    order: npt.NDArray[np.intp]
    scaled: Doubles
    before: Doubles
    cut: npt.NDArray[np.int8]
    kept: npt.NDArray[np.bool_]
    after: Doubles
    mass: tuple[float, ...]
    marked: Doubles
    green: float = 0.0


def scale_logits(logits: npt.ArrayLike, context: npt.ArrayLike, sample: Sample) -> Doubles:
    """Return logits (vocab_size,) after biases, penalties and temperature (greedy: 1), by which
    shaders/logit_sort_keys.wgsl ranks tokens. `context`: ids of the text so far, in order; the run
    wrote the last `sample.index` of them. −1 stands for a token that is not in the vocabulary."""
    scaled = np.array(logits, np.float64)
    for each in sample.logit_bias:
        scaled[each.id] += each.bias
    ids = np.asarray(context, np.int64)
    seen, penalty = np.unique(ids[ids >= 0]), sample.repetition_penalty
    scaled[seen] = np.where(scaled[seen] > 0, scaled[seen] / penalty, scaled[seen] * penalty)
    written = ids[max(0, len(ids) - sample.index) :]
    written, times = np.unique(written[written >= 0], return_counts=True)
    times = np.minimum(times, MAX_TIMES_WRITTEN)
    scaled[written] -= sample.frequency_penalty * times + sample.presence_penalty
    return scaled / (sample.temperature or 1.0)


def within(
    ids: npt.NDArray[np.intp], context: npt.ArrayLike, sample: Sample
) -> tuple[npt.NDArray[np.intp], Sample]:
    """Return context and sample for a vocabulary of the rising `ids` alone."""
    tokens = np.asarray(context, np.intp)
    places = np.minimum(np.searchsorted(ids, tokens), len(ids) - 1)
    at = {int(id): place for place, id in enumerate(ids)} if sample.logit_bias else {}
    biases = tuple(
        msgspec.structs.replace(each, id=at[each.id]) for each in sample.logit_bias if each.id in at
    )
    return np.where(ids[places] == tokens, places, -1), replace(sample, logit_bias=biases)


Bits = npt.NDArray[np.bool_]
Greenlist = Bits | Callable[[npt.NDArray[np.intp]], Bits]
"""Tokens (vocab_size,) that a watermark favours, or how they follow from the ids of the most likely
tokens, best first."""


def greenlist_within(ids: npt.NDArray[np.intp], green: Greenlist | None) -> Greenlist | None:
    """Return a greenlist in a draw limited to the tokens `ids`, in rising order."""
    if not callable(green):
        return None if green is None else green[ids]
    whole = green
    return lambda ranked: whole(ids[ranked])[ids]


def distribution(
    logits: npt.ArrayLike,
    context: npt.ArrayLike,
    sample: Sample,
    green: Greenlist | None = None,
) -> Distribution:
    """Apply the settings of `sample` to `logits` (vocab_size,). `context`: see `scale_logits`;
    `green`: the greenlist of `Sample.watermark_bias`."""
    scaled = scale_logits(logits, context, sample)
    order = np.argsort(-scaled, kind="stable")
    before = softmax(scaled)
    cut = np.zeros(len(scaled), np.int8)
    if sample.temperature == 0:
        kept = np.arange(len(scaled)) == np.argmax(scaled)
        mass = (1.0, *(0.0 for _ in CUTS[1:]))
        after = kept.astype(np.float64)
        chances = Distribution(order, scaled, before, cut, kept, after, mass, scaled)
        return chances if green is None else _watermarked(chances, sample, green)
    if 0 < sample.top_k < len(scaled):
        cut[scaled < scaled[order[sample.top_k - 1]]] = 1
    if sample.top_p < 1:
        left = order[cut[order] == 0]
        cumulative = np.cumsum(before[left])
        place = np.searchsorted(cumulative, sample.top_p * cumulative[-1], side="left")
        cut[(cut == 0) & (scaled < scaled[left[place]])] = 2
    if sample.min_p > 0:
        cut[(cut == 0) & (scaled < scaled.max() + np.log(sample.min_p))] = 3
    kept = cut == 0
    mass = tuple(float(before[cut == i].sum()) for i in range(len(CUTS)))
    after = np.where(kept, before / mass[0], 0.0)
    chances = Distribution(order, scaled, before, cut, kept, after, mass, scaled)
    return chances if green is None else _watermarked(chances, sample, green)


def _watermarked(chances: Distribution, sample: Sample, green: Greenlist) -> Distribution:
    """Add the bias of a watermark to the survivors that are green."""
    if callable(green):
        green = green(chances.order)
    marked = chances.scaled + sample.watermark_bias * green
    if sample.temperature == 0:
        kept = np.arange(len(marked)) == np.argmax(marked)
        after, share = kept.astype(np.float64), chances.before[green].sum()
    else:
        kept, share = chances.kept, chances.after[green].sum()
        after = softmax(np.where(kept, marked, -np.inf))
    return replace(chances, kept=kept, after=after, marked=marked, green=float(share))


def draw(chances: Distribution, u: float) -> int:
    """Return the survivor at which the cumulative probability, most likely first, exceeds `u`."""
    survivors = draw_order(chances)
    cumulative = np.cumsum(chances.after[survivors])
    place = int(np.searchsorted(cumulative, u * cumulative[-1], side="right"))
    return int(survivors[min(place, len(survivors) - 1)])  # past the end if logits are NaN


def draw_order(chances: Distribution) -> npt.NDArray[np.intp]:
    """Return the survivors, most likely first, ties by id."""
    order = np.argsort(-chances.marked, kind="stable")
    return order[chances.kept[order]]


@np.errstate(invalid="ignore")  # NaN logits show in the log-probability
def sample_token(
    logits: npt.ArrayLike,
    context: npt.ArrayLike,
    sample: Sample,
    allowed: npt.NDArray[np.bool_] | None = None,
    green: Greenlist | None = None,
) -> Sampled:
    """Choose a token and report how: the twin of shaders/sample.wgsl. `allowed` (vocab_size,): the
    tokens of `Sample.n_allowed`, which are the whole vocabulary of this draw; None: all. `green`:
    the greenlist of `Sample.watermark_bias`; None: there is no watermark."""
    logprobs = log_softmax(logits)
    ids = np.arange(len(logprobs)) if allowed is None else np.flatnonzero(allowed)
    green = greenlist_within(ids, green)
    chances = distribution(np.asarray(logits)[ids], *within(ids, context, sample), green)
    u = 0.0 if sample.temperature == 0 else uniform(sample.seed, sample.index)
    at = draw(chances, u)
    return Sampled(
        id=int(ids[at]),
        logprob=float(logprobs[ids[at]]),
        probability=float(chances.after[at]),
        rank=int(np.count_nonzero(chances.kept & (chances.marked > chances.marked[at]))),
        n_kept=int(np.count_nonzero(chances.kept)),
        draw=u,
        mass=chances.mass,
        candidates=tuple(
            Candidate(
                int(ids[i]), float(chances.before[i]), float(chances.after[i]), CUTS[chances.cut[i]]
            )
            for i in chances.order[:N_CANDIDATES]
        ),
        allowed=1.0 if allowed is None else float(np.exp(logprobs[ids]).sum()),
        green=chances.green,
    )
