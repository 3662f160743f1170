"""Checks of the first half of the sampler: sort keys, and the bins of a large vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from gpu.checks.rig import ROUNDING, Array, Rig, check_each
from gpu.checks.sampler import VOCABS, Expected
from gpu.checks.sampler_rig import SamplerRig, settings
from gpu.ops.sampling import N_BINS, SLICE_LANES, slices, strip_quads
from gpu.reference import sampler as reference
from gpu.sampling_params import TokenBias
from gpu.step import Sample

MASS_UNITS = 2**20
"""Mass of a token at the top of its bin, see shaders/lib/sampler_bins.wgsl."""
RELATIVE = 512 * ROUNDING


def logits_of_keys(keys: Array) -> Array:
    """Return the logits that sort keys stand for."""
    bits = np.where(keys >> 31, keys & 0x7FFFFFFF, ~keys)
    return bits.astype(np.uint32).view(np.float32)


def row_keys(sampler: SamplerRig, logits: Array, sample: Sample, context: list[int]) -> Array:
    """Return the sort keys of a row, then five summaries of each strip; after another sample's."""
    sampler.choose(np.stack([logits[::-1], logits]), [settings(), sample], [[], context])
    row: Array = sampler.keys()[1]
    return row


def by_strip(keys: Array, vocab: int) -> Array:
    """Return keys as (strips, tokens of a strip)."""
    parts = keys.reshape(slices(vocab), strip_quads(vocab), SLICE_LANES, 4)
    return parts.transpose(0, 2, 1, 3).reshape(-1, strip_quads(vocab) * 4)


def check_sort_keys(rig: Rig, vocab: int, sample: Sample, n_biases: int = 0) -> None:
    """Compare sort keys with the scaled logits, and the summaries of strips with their keys.
    `n_biases`: most tokens with a bias, the last of the vocabulary among them."""
    rng = np.random.default_rng(vocab)
    ids = [*rng.permutation(vocab)[: max(0, n_biases - 1)].tolist(), vocab - 1]
    biased = dict.fromkeys(ids) if n_biases else {}
    biases = tuple(TokenBias(id, float(np.float32(rng.normal(0, 5)))) for id in biased)
    sample, logits = replace(sample, logit_bias=biases), rng.normal(0, 3, vocab).astype(np.float32)
    logits[: vocab // 9] = np.float32(0.5)  # ties
    if vocab > 2:
        logits[rng.permutation(vocab)[:3]] = [0.0, -0.0, -np.inf]
    context = rng.integers(0, vocab, vocab // 3).tolist() + [vocab // 2] * 9
    row, case = row_keys(SamplerRig(rig, vocab), logits, sample, context), f"{vocab}, {sample}"
    strips = slices(vocab) * SLICE_LANES
    keys, summaries = np.split(row, [4 * strips * strip_quads(vocab)])
    rig.expect(f"{case}: a key behind the vocabulary", not keys[vocab:].any())
    scaled = logits_of_keys(keys[:vocab])
    order, key_order = (np.argsort(each, kind="stable") for each in (scaled, keys[:vocab]))
    rig.expect(f"{case}: keys do not sort like their logits", np.array_equal(order, key_order))
    want = reference.scale_logits(logits, context, sample)
    finite = np.isfinite(want)
    added = Expected(logits, context, sample).added()[finite]
    rig.expect(f"{case}: infinite logits", np.array_equal(scaled[~finite], want[~finite]))
    bound = 8 * ROUNDING * (np.abs(want[finite]) + added)
    rig.compare("logit_sort_keys.scaled", case, scaled[finite], want[finite], bound)
    greatest, *rest, _ = summaries.reshape(5, strips)
    same = np.array_equal(greatest, by_strip(keys, vocab).max(1))
    rig.expect(f"{case}: greatest keys of strips", same)
    mass, raw_top, raw_mass = (part.view(np.float32).astype(np.float64) for part in rest)
    used = np.isfinite(logits_of_keys(greatest)) & (greatest > 0)
    tops = logits_of_keys(greatest[used]).astype(np.float64)
    _check_mass(rig, f"{case}, scaled", scaled, tops, mass[used])
    _check_mass(rig, f"{case}, raw", logits, raw_top[used], raw_mass[used])


def _check_mass(rig: Rig, case: str, logits: Array, tops: Array, masses: Array) -> None:
    """Compare Σ exp computed from the strips; a strip's maximum is its largest, so its mass is at
    least 1."""
    most = 4 * 8 * (1 + 64 * ROUNDING)
    rig.expect(f"{case}: masses of strips", bool((masses >= 1).all() and (masses <= most).all()))
    rig.expect(f"{case}: the top of strips", tops.max() == logits.max())
    want = np.exp(logits.astype(np.float64) - tops.max()).sum()
    got = (masses * np.exp(tops - tops.max())).sum()
    rig.compare("logit_sort_keys.mass", case, got, want, 256 * ROUNDING * want)


# ---- bins ------------------------------------------------------------------------------------


def with_bins(rig: Rig) -> Rig:
    """Return a rig that sorts a row into bins, as GPUs do with large vocabularies."""
    return rig.on(replace(rig.device, policy=replace(rig.device.policy, bins_from=1)))


def check_logit_histogram(rig: Rig, vocab: int) -> None:
    """Compare the number of tokens in all bins, and their mass."""
    sampler, scaled = _binned(rig, vocab)
    counts, units = sampler.bins(0)[0].transpose(1, 0, 2).astype(np.float64)
    rig.expect(f"{vocab} tokens: not all are counted", counts.sum() == vocab)
    heights = np.exp(-_width(scaled) * np.arange(N_BINS)) / MASS_UNITS
    want = np.exp(scaled - scaled.max()).sum()
    got = (units @ heights).sum()
    rig.compare("logit_histogram.mass", f"{vocab} tokens", got, want, RELATIVE * want)


def check_logit_scatter(rig: Rig, vocab: int) -> None:
    """Compare the tokens of each bin, where they end, and their mass."""
    sampler, scaled = _binned(rig, vocab)
    _, spans, ids = sampler.bins(0)
    parts = [ids[4 * first : 4 * first + n] for first, n, *_ in spans]
    listed = np.sort(np.concatenate(parts))
    rig.expect(f"{vocab} tokens: not all are listed", np.array_equal(listed, np.arange(vocab)))
    bins = np.minimum((scaled.max() - scaled) / _width(scaled), N_BINS - 1).astype(int)
    right = all((bins[part] == bin).all() for bin, part in enumerate(parts))
    rig.expect(f"{vocab} tokens: not by bin", right)
    ends = np.cumsum(np.bincount(bins, minlength=N_BINS))
    rig.expect(f"{vocab} tokens: spans", np.array_equal(spans[:, 2], ends))
    masses = np.bincount(bins, np.exp(scaled - scaled.max()), N_BINS).cumsum()
    got = np.ascontiguousarray(spans[:, 3]).view(np.float32)
    rig.compare("logit_scatter.mass", f"{vocab} tokens", got, masses, RELATIVE * masses)


def _binned(rig: Rig, vocab: int) -> tuple[SamplerRig, Array]:
    """Return a sampler that has sorted a row into bins, and the scaled logits of the row."""
    sampler = SamplerRig(with_bins(rig), vocab)
    logits = np.random.default_rng(vocab).normal(0, 3, (1, vocab)).astype(np.float32)
    sampler.choose(logits, [settings()])
    return sampler, logits[0].astype(np.float64)


def _width(scaled: Array) -> float:
    """Return the width of the bins of a row."""
    strips = np.full(slices(len(scaled)) * SLICE_LANES * 4 * strip_quads(len(scaled)), -np.inf)
    strips[: len(scaled)] = scaled
    strips = strips.reshape(-1, strip_quads(len(scaled)), SLICE_LANES, 4).max((1, 3))
    span = np.float32(scaled.max() - strips[np.isfinite(strips)].min())
    return float(2.0 ** (np.clip(np.frexp(span)[1] - 1, -3, 2) - 5))


# ---- of a report -----------------------------------------------------------------------------

KEYED = (settings(temperature=0.75), settings(temperature=0.75, repetition_penalty=1.25))

CHECKS: dict[str, Callable[[Rig], None]] = {
    "logit_sort_keys": check_each(
        check_sort_keys, *((vocab, sample) for vocab in VOCABS for sample in KEYED)
    ),
    "logit_histogram": check_each(check_logit_histogram, *VOCABS),
    "logit_scatter": check_each(check_logit_scatter, *VOCABS),
}
