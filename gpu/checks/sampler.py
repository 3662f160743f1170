"""Checks of a sampler's choices.

Float32 may put a token on the other side of a threshold only when it lies within rounding of it.
`check_draw` works out how many tokens can survive then, nearly always one number, and holds the
device to it; as survivors are always the most likely tokens, their number says which they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from gpu.checks.rig import ROUNDING, Array, Rig, check_each
from gpu.checks.sampler_rig import SamplerRig, settings
from gpu.ops.step_buffer import MAX_SAMPLES
from gpu.reference import sampler as reference
from gpu.reference.watermark import selfhash_greenlist
from gpu.sampling_params import TokenBias
from gpu.step import CUTS, N_CANDIDATES, Sample, Sampled, Selfhash


@dataclass(frozen=True)
class Expected:
    """Result of the reference for one draw, and the error bounds of float32."""

    logits: Array
    context: Sequence[int]
    sample: Sample
    green: reference.Greenlist | None = None

    @property
    def case(self) -> str:
        return f"{len(self.logits)} tokens, {self.sample}"

    def result(self, name: str) -> str:
        """Return the name in the summary; logits in the thousands are listed apart, as float32 has
        few digits of their masses."""
        return f"sample.{name}" + (".extreme" if np.abs(self.logits).max() > 100 else "")

    @property
    def error_of_sums(self) -> float:
        """Relative error of a float32 sum of positive numbers, by 64 lanes and then over them."""
        return ROUNDING * (48 + 4 * math.sqrt(len(self.logits) / 64))

    def sum_error(self, d: reference.Distribution) -> float:
        """The same of the masses. Where all are equal they are 1 and their sums exact: what remains
        is the rounding of a threshold in them."""
        return 2 * ROUNDING if is_flat(d) else self.error_of_sums

    def mass_error(self, d: reference.Distribution) -> Array:
        """Relative error of each mass exp(scaled − top): of exp, and of scaling if there was."""
        if is_flat(d):
            return np.zeros(len(self.logits))
        s = self.sample
        added = self.added()
        scaling = 16 if s.temperature not in (0, 1) or s.repetition_penalty != 1 else 0
        scaled = scaling * (np.abs(d.scaled) + added) + 4 * added + 8 * s.watermark_bias
        error: Array = ROUNDING * (16 + 8 * (d.marked.max() - d.marked) + scaled)
        return error

    def added(self) -> Array:
        """Sizes of what biases and the penalties that count add to each scaled logit."""
        s = self.sample
        sizes = replace(
            s,
            repetition_penalty=1.0,
            frequency_penalty=-abs(s.frequency_penalty),
            presence_penalty=-abs(s.presence_penalty),
            logit_bias=tuple(TokenBias(each.id, abs(each.bias)) for each in s.logit_bias),
        )
        added = reference.scale_logits(np.zeros(len(self.logits)), self.context, sizes)
        return added * max(s.repetition_penalty, 1 / s.repetition_penalty)

    def distribution(self, **changes: Any) -> reference.Distribution:
        sample = replace(self.sample, **changes)
        return reference.distribution(self.logits, self.context, sample, self.green)

    def may_be_kept(self, d: reference.Distribution) -> range:
        """Bounds of the number of survivors, given the rounding of masses and thresholds."""
        s = self.sample
        if s.temperature == 0:
            return range(1, 2)
        slack = 2 * float(d.before @ self.mass_error(d)) + 2 * self.sum_error(d)
        height = slack + 4 * ROUNDING * np.abs(d.scaled).max()  # of the threshold of min-p
        counts = []
        for way in (-1, 1):
            top_p = s.top_p * (1 + way * slack) if s.top_p < 1 else 1.0
            moved = self.distribution(
                top_p=top_p, min_p=min(1.0, s.min_p * math.exp(-way * height))
            )
            counts.append(int(np.count_nonzero(moved.kept)))
        return range(min(counts), max(counts) + 1)

    def may_be_drawn(self, d: reference.Distribution, u: float) -> list[int]:
        """The survivors whose share of [0, 1) comes within rounding of u."""
        if self.sample.temperature == 0:
            return [reference.draw(d, 0.0)]
        slack = 2 * float(d.after @ self.mass_error(d)) + 2 * self.sum_error(d)
        order: list[int] = reference.draw_order(d).tolist()
        ends = [reference.draw(d, min(max(at, 0.0), 1 - 2.0**-53)) for at in (u - slack, u + slack)]
        return order[order.index(ends[0]) : order.index(ends[1]) + 1]


def is_flat(d: reference.Distribution) -> bool:
    """True if all logits are equal."""
    return bool(np.ptp(d.marked) == 0)


def check_draw(
    rig: Rig,
    got: Sampled,
    logits: Array,
    context: Sequence[int],
    sample: Sample,
    green: reference.Greenlist | None = None,
) -> bool:
    """Compare one draw with the reference; return whether rounding leaves only one answer.
    `green`: greenlist of a sample with a watermark."""
    e = Expected(logits.astype(np.float64), context, sample, green)
    d = e.distribution()
    kept, n_kept = e.may_be_kept(d), np.count_nonzero(d.kept)
    rig.expect(f"{e.case}: kept {got.n_kept}, not {n_kept}", got.n_kept in kept)
    _check_candidates(rig, got, e, d, decided=len(kept) == 1)
    _check_logprob(rig, got, e)
    rank = np.count_nonzero(d.kept & (d.marked > d.marked[got.id]))
    rig.expect(f"{e.case}: rank {got.rank} instead of {rank}", got.rank == rank)
    if got.n_kept != n_kept:
        return False
    error = float((d.before + d.after) @ e.mass_error(d)) + e.sum_error(d)
    rig.compare(e.result("green"), e.case, np.array([got.green]), np.array([d.green]), 4 * error)
    rig.compare(e.result("mass"), e.case, np.array(got.mass), np.array(d.mass), 4 * error)
    u = 0.0 if sample.temperature == 0 else reference.uniform(sample.seed, sample.index)
    rig.expect(f"{e.case}: the draw was {got.draw}, not {u}", got.draw == u)
    drawn = e.may_be_drawn(d, u)
    rig.expect(f"{e.case}: chose {got.id}, not {reference.draw(d, u)}", got.id in drawn)
    probability = d.after[[got.id]]
    bound = (e.mass_error(d)[got.id] + 2 * error) * probability
    rig.compare(e.result("after"), e.case, np.array([got.probability]), probability, bound)
    return len(kept) == len(drawn) == 1


def _check_candidates(
    rig: Rig, got: Sampled, e: Expected, d: reference.Distribution, decided: bool
) -> None:
    """Compare the most likely tokens, ties by id, with the effect of the filters on each."""
    ids = d.order[:N_CANDIDATES]
    found = [c.id for c in got.candidates]
    rig.expect(f"{e.case}: candidates {found}", found == ids.tolist())
    bound = e.mass_error(d)[ids] + float((d.before + d.after) @ e.mass_error(d)) + e.sum_error(d)
    before = np.array([c.before for c in got.candidates])
    rig.compare(e.result("before"), e.case, before, d.before[ids], bound * d.before[ids])
    if decided:
        cuts = [CUTS[i] for i in d.cut[ids]]
        rig.expect(f"{e.case}: cuts", [c.cut for c in got.candidates] == cuts)
        after = np.array([c.after for c in got.candidates])
        rig.compare(e.result("after"), e.case, after, d.after[ids], 2 * bound * d.after[ids])


def _check_logprob(rig: Rig, got: Sampled, e: Expected) -> None:
    """Compare the log-probability. The raw logit is won back from the scaled one; log Σ exp is as
    good as its terms."""
    top = e.logits.max()
    want = e.logits[got.id] - top - np.log(np.exp(e.logits - top).sum())
    size = np.abs(e.logits).max() + math.log(len(e.logits)) + 1
    bound = 16 * ROUNDING * size + e.error_of_sums
    rig.compare(e.result("logprob"), e.case, np.array([got.logprob]), np.array([want]), bound)


Family = Callable[[np.random.Generator, int], Array]
"""Makes logits of a kind for a vocabulary."""


def normal_logits(rng: np.random.Generator, n: int) -> Array:
    return rng.normal(0, 3, n)


def check_settings(
    sampler: SamplerRig, family: Family, chosen: Sequence[Sample], rng: np.random.Generator
) -> list[bool]:
    """Compare draws with these settings with the reference; return which have only one answer."""
    vocab, decided = sampler.vocab_size, []
    for start in range(0, len(chosen), MAX_SAMPLES):
        samples = [
            replace(s, seed=int(rng.integers(2**64, dtype=np.uint64)), index=7 * (start + i))
            for i, s in enumerate(chosen[start : start + MAX_SAMPLES])
        ]
        logits = np.stack([family(rng, vocab) for _ in samples]).astype(np.float32)
        seen = [rng.integers(0, vocab, vocab // 3).tolist() for _ in samples]
        green = [rng.random(vocab) < 0.25 if s.watermark_bias else None for s in samples]
        for i, got in enumerate(sampler.choose(logits, samples, seen, green=green)):
            decided.append(check_draw(sampler.rig, got, logits[i], seen[i], samples[i], green[i]))
    return decided


# ---- of a report -----------------------------------------------------------------------------

VOCABS = (31, 257, 4099, 49152)
SETTINGS = (
    settings(),
    settings(temperature=0.0),
    settings(temperature=0.5, repetition_penalty=1.3),
    settings(frequency_penalty=0.75, presence_penalty=-0.5, logit_bias=(TokenBias(30, 1.5),)),
    settings(top_k=5),
    settings(top_p=0.75),
    settings(min_p=0.05),
    settings(temperature=0.75, top_k=40, top_p=0.875, min_p=0.03125),
    settings(temperature=2.5, top_k=7),
    settings(watermark_bias=1.5, temperature=0.75, top_k=40, top_p=0.875, min_p=0.03125),
)
WATERMARKED = (
    settings(watermark_bias=2.0),
    settings(watermark_bias=20.0, top_p=0.75),
    settings(top_p=0.75),
    settings(watermark_bias=4.0, temperature=0.0),
    settings(watermark_bias=0.5, temperature=0.5, repetition_penalty=1.3, min_p=0.05),
)


def check_sample(rig: Rig, vocab: int) -> None:
    """Compare a draw with each of `SETTINGS` with the reference."""
    rng = np.random.default_rng(vocab)
    check_settings(SamplerRig(rig, vocab), normal_logits, SETTINGS, rng)


def check_watermark_keys(rig: Rig, vocab: int) -> None:
    """Compare draws with a watermark, of rows beside others without one, with the reference."""
    rng = np.random.default_rng(vocab)
    check_settings(SamplerRig(rig, vocab), normal_logits, WATERMARKED, rng)


def random_selfhash(rng: np.random.Generator, vocab: int, n_hashed: int) -> Selfhash:
    """Return random hashes and products; a third of the vocabulary is green."""
    products = rng.integers(0, 2**64, n_hashed, np.uint64, endpoint=False)
    return Selfhash(vocab // 3, rng.integers(1, 1_000_004, vocab, np.uint32), products)


def check_selfhash_greenlist(rig: Rig, vocab: int) -> None:
    """Compare greenlists of selfhash and draws with them, of rows beside others without a
    watermark, with the reference."""
    rng, sampler = np.random.default_rng(vocab), SamplerRig(rig, vocab)
    samples = [replace(s, seed=11, index=i) for i, s in enumerate(WATERMARKED)]
    logits = rng.normal(0, 3, (len(samples), vocab)).astype(np.float32)
    seen = [rng.integers(0, vocab, vocab // 3).tolist() for _ in samples]
    green = [
        random_selfhash(rng, vocab, 1 + 5 * i % 16) if sample.watermark_bias else None
        for i, sample in enumerate(samples)
    ]
    for i, got in enumerate(sampler.choose(logits, samples, seen, green=green)):
        if (selfhash := green[i]) is None:
            check_draw(rig, got, logits[i], seen[i], samples[i])
            continue
        twin = partial(selfhash_greenlist, selfhash=selfhash)
        check_draw(rig, got, logits[i], seen[i], samples[i], twin)
        d = reference.distribution(logits[i].astype(np.float64), seen[i], samples[i])
        kept = d.kept | (samples[i].temperature == 0)
        same = np.array_equal(sampler.greenlist(i), twin(d.order) & kept)
        rig.expect(f"{vocab}, {samples[i]}: the greenlist is wrong", same)


CHECKS: dict[str, Callable[[Rig], None]] = {
    "sample": check_each(check_sample, *VOCABS),
    "watermark_keys": check_each(check_watermark_keys, *VOCABS),
    "selfhash_greenlist": check_each(check_selfhash_greenlist, *VOCABS),
}
