"""Checks of the sampler: sort keys, survivors and draws.

Float32 may put a token on the other side of a threshold when it lies within rounding of it, so
draws are taken that rounding cannot change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gpu import ops
from gpu.bench.machine.rig import ROUNDING, Array, Rig, plain_rows
from gpu.ops.sampling import RESULT_WORDS, SLICE_LANES, slices, strip_quads
from gpu.ops.step_buffer import MAX_SAMPLES
from gpu.reference import sampler as reference
from gpu.runners.results import parse_samples
from gpu.sampling_params import TokenBias
from gpu.step import Sample, Sampled
from gpu.webgpu.buffers import padded
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
RELATIVE = 512 * ROUNDING
"""Bound of the relative error of probabilities: of exp, and of sums over the vocabulary."""


class Sampler:
    """Buffers of the sampler for one vocabulary."""

    def __init__(self, rig: Rig, vocab: int) -> None:
        self.rig, self.vocab = rig, vocab
        memory = rig.memory
        self._logits = memory.zeros("logits", (MAX_SAMPLES, padded(vocab)))
        self._keys = ops.sort_keys_tensor(memory, MAX_SAMPLES, vocab)
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
        for tensor in (self._keys, self._results):
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

    def scaled_logits(self, row: int) -> Array:
        """Return the logits that the sort keys of a row stand for."""
        n = 4 * slices(self.vocab) * SLICE_LANES * strip_quads(self.vocab)
        keys = self.rig.memory.read(self._keys)[row, :n][: self.vocab]
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
    raise AssertionError("no draw is decided")


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
    "sample": check_sample,
}
