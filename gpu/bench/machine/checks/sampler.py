"""Checks of the sampler: sort keys, survivors and draws.

Float32 may put a token on the other side of a threshold when it lies within rounding of it, so
draws are taken that rounding cannot change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np

from gpu import ops
from gpu.bench.machine.rig import ROUNDING, Array, Rig, plain_rows
from gpu.ops.sampling import (
    N_BINS,
    RESULT_WORDS,
    SLICE_LANES,
    bin_groups,
    slices,
    strip_quads,
)
from gpu.ops.step_buffer import MAX_SAMPLES
from gpu.reference import sampler as reference
from gpu.runners.results import parse_samples
from gpu.sampling_params import TokenBias
from gpu.step import Sample, Sampled
from gpu.webgpu.buffers import Memory, padded
from gpu.webgpu.plan import Recorder

VOCABS = (31, 257, 4099, 49152)
MARGIN = 1e-3
"""Least distance of a draw from the borders of its token's share, as a share of all mass."""
SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.0},
    {"temperature": 0.5, "repetition_penalty": 1.3},
    {"frequency_penalty": 0.75, "presence_penalty": -0.5, "logit_bias": (TokenBias(30, 1.5),)},
    {"top_k": 5},
    {"top_p": 0.75},
    {"min_p": 0.05},
    {"temperature": 0.75, "top_k": 40, "top_p": 0.875, "min_p": 0.03125},
    {"temperature": 2.5, "top_k": 7},
)
MASS_UNITS = 2**20
"""Mass of a token at the top of its bin, see shaders/lib/sampler_bins.wgsl."""
RELATIVE = 512 * ROUNDING
"""Bound of the relative error of probabilities: of exp, and of sums over the vocabulary."""


class Sampler:
    """Buffers of the sampler for one vocabulary."""

    def __init__(self, rig: Rig, vocab: int) -> None:
        self.rig, self.vocab = rig, vocab
        memory = rig.memory
        self._logits = memory.zeros("logits", (MAX_SAMPLES, padded(vocab)))
        self._keys = ops.SortKeys.make(memory, MAX_SAMPLES, vocab)
        self._texts = ops.SlotTexts.make(memory, MAX_SAMPLES, vocab)
        self._allowed = memory.zeros("allowed", self._texts.seen.shape, "u32")
        self._chosen = memory.zeros("chosen", (MAX_SAMPLES,), "u32")
        self._results = memory.zeros("results", (MAX_SAMPLES, RESULT_WORDS), "u32")

    def run(self, logits: Array, samples: list[Sample], context: Array) -> tuple[Sampled, ...]:
        """Return the device's choices for rows of logits after `context`."""
        memory, vocab = self.rig.memory, self.vocab
        whole = np.full(self._logits.shape, np.nan, np.float32)
        whole[: len(logits), :vocab] = logits
        memory.write(self._logits, whole)
        for sample in samples:
            n_written = min(sample.index, len(context))
            self._texts.set_text(memory, sample.slot, context, n_written)
            self._texts.set_biases(memory, sample.slot, sample.logit_bias)
        for tensor in (self._keys.keys, self._results):
            self.rig.poison(tensor)
        batch = self.rig.batch(plain_rows(1), samples)

        def record(rec: Recorder) -> None:
            ops.logit_sort_keys(
                rec, batch, "keys", vocab, self._logits, self._texts, self._allowed, self._keys
            )
            ops.sample(
                rec, batch, "sample", vocab, self._logits, self._keys, self._texts, self._chosen,
                self._results,
            )  # fmt: skip

        self.rig.run(record)
        return parse_samples(memory.read(self._results).tobytes(), len(samples))

    def bins(self, row: int) -> tuple[Array, Array, Array]:
        """Return the bins of a row: counts and masses (groups, 2, bins), spans (bins, 4), ids."""
        assert self._keys.bins is not None
        words = self.rig.memory.read(self._keys.bins)[row]
        n = 2 * N_BINS * bin_groups(self.vocab, self.rig.device.policy)
        counts, spans, ids = np.split(words, [n, n + 4 * N_BINS])
        return counts.reshape(-1, 2, N_BINS), spans.reshape(-1, 4), ids

    def scaled_logits(self, row: int) -> Array:
        """Return the logits that the sort keys of a row stand for."""
        n = 4 * slices(self.vocab) * SLICE_LANES * strip_quads(self.vocab)
        keys = self.rig.memory.read(self._keys.keys)[row, :n][: self.vocab]
        bits = np.where(keys >> 31, keys & 0x7FFFFFFF, ~keys)
        return bits.astype(np.uint32).view(np.float32)


def check_logit_sort_keys(rig: Rig) -> None:
    for vocab in VOCABS:
        rng, sampler = np.random.default_rng(vocab), Sampler(rig, vocab)
        logits = rng.normal(0, 3, (3, vocab)).astype(np.float32)
        logits[:, : vocab // 9] = np.float32(0.5)  # ties
        context = rng.integers(0, vocab, vocab // 3).astype(np.uint32)
        samples = [
            Sample(0, i, 0, 0, temperature=0.75, repetition_penalty=1.25 if i else 1.0)
            for i in range(len(logits))
        ]
        sampler.run(logits, samples, context)
        for i, sample in enumerate(samples):
            want = reference.scale_logits(logits[i], context, sample)
            got, case = sampler.scaled_logits(i), f"{vocab} tokens"
            rig.compare(case, got, want, 8 * ROUNDING * np.abs(want))


def check_logit_histogram(rig: Rig) -> None:
    for vocab in VOCABS:
        sampler, scaled = _binned(rig, vocab)
        counts, units = sampler.bins(0)[0].transpose(1, 0, 2).astype(np.float64)
        rig.expect(f"{vocab} tokens: not all are counted", counts.sum() == vocab)
        heights = np.exp(-_width(scaled) * np.arange(N_BINS)) / MASS_UNITS
        want = np.exp(scaled - scaled.max()).sum()
        rig.compare(f"{vocab} tokens: mass", (units @ heights).sum(), want, RELATIVE * want)


def check_logit_scatter(rig: Rig) -> None:
    for vocab in VOCABS:
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
        rig.compare(f"{vocab} tokens: mass", got, masses, RELATIVE * masses)


def _binned(rig: Rig, vocab: int) -> tuple[Sampler, Array]:
    """Return a sampler that has sorted a row into bins, as GPUs do with large vocabularies, and the
    scaled logits of the row."""
    rig = copy(rig)
    rig.device = replace(rig.device, policy=replace(rig.device.policy, bins_from=1))
    rig.memory = Memory(rig.device)
    sampler = Sampler(rig, vocab)
    logits = np.random.default_rng(vocab).normal(0, 3, (1, vocab)).astype(np.float32)
    sampler.run(logits, [Sample(0, 0, 0, 0)], np.zeros(0, np.uint32))
    return sampler, logits[0].astype(np.float64)


def _width(scaled: Array) -> float:
    """Return the width of the bins of a row."""
    strips = np.full(slices(len(scaled)) * SLICE_LANES * 4 * strip_quads(len(scaled)), -np.inf)
    strips[: len(scaled)] = scaled
    strips = strips.reshape(-1, strip_quads(len(scaled)), SLICE_LANES, 4).max((1, 3))
    span = np.float32(scaled.max() - strips[np.isfinite(strips)].min())
    return float(2.0 ** (np.clip(np.frexp(span)[1] - 1, -3, 2) - 5))


def check_sample(rig: Rig, vocabs: Sequence[int] = VOCABS) -> None:
    for vocab in vocabs:
        rng, sampler = np.random.default_rng(vocab), Sampler(rig, vocab)
        logits = rng.normal(0, 3, (len(SETTINGS), vocab)).astype(np.float32)
        logits[:, vocab // 2] += 9  # likely enough that shares are wider than the margin
        context = rng.integers(0, vocab, vocab // 3).astype(np.uint32)
        samples = [
            _decided(logits[i], context, replace(Sample(0, i, 0, 3 + i), **changes))
            for i, changes in enumerate(SETTINGS)
        ]
        for i, got in enumerate(sampler.run(logits, samples, context)):
            want = reference.sample_token(logits[i], context, samples[i])
            _compare(rig, f"{vocab} tokens, {SETTINGS[i]}", got, want)


def _decided(logits: Array, context: Array, sample: Sample) -> Sample:
    """Return the sample with the first seed whose draw lies well inside its token's share."""
    chances = reference.distribution(logits, context, sample)
    if sample.temperature == 0:
        return sample
    for seed in range(1000):
        u = reference.uniform(seed, sample.index)
        ends = {reference.draw(chances, min(max(x, 0.0), 1.0)) for x in (u - MARGIN, u + MARGIN)}
        if len(ends) == 1:
            return replace(sample, seed=seed)
    raise AssertionError("no draw is clear of rounding")


def _compare(rig: Rig, case: str, got: Sampled, want: Sampled) -> None:
    rig.expect(f"{case}: chose {got.id} instead of {want.id}", got.id == want.id)
    rig.expect(f"{case}: kept {got.n_kept}, not {want.n_kept}", got.n_kept == want.n_kept)
    rig.expect(f"{case}: rank {got.rank} instead of {want.rank}", got.rank == want.rank)
    rig.expect(f"{case}: draw {got.draw} instead of {want.draw}", got.draw == want.draw)
    for name, one, other in _numbers(got, want):
        rig.compare(f"{case}: {name}", one, other, RELATIVE * np.maximum(np.abs(other), 0.05))
    ids = [candidate.id for candidate in got.candidates]
    rig.expect(f"{case}: candidates {ids}", ids == [c.id for c in want.candidates])


def _numbers(got: Sampled, want: Sampled) -> Iterator[tuple[str, Array, Array]]:
    for name in ("logprob", "probability", "mass"):
        yield name, np.atleast_1d(getattr(got, name)), np.atleast_1d(getattr(want, name))
    for name in ("before", "after"):
        one, other = ([getattr(c, name) for c in s.candidates] for s in (got, want))
        yield name, np.array(one), np.array(other)


CHECKS: dict[str, Callable[[Rig], None]] = {
    "logit_sort_keys": check_logit_sort_keys,
    "logit_histogram": check_logit_histogram,
    "logit_scatter": check_logit_scatter,
    "sample": check_sample,
}
