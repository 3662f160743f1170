"""Edges of the sampler's buffers: slices and strips of the vocabulary, and thresholds below the
tokens it sorts first, for which it searches the row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from gpu.checks.rig import Array
from gpu.checks.sampler import check_draw
from gpu.checks.sampler_rig import SamplerRig, settings
from gpu.ops.sampling import SLICE_LANES, strip_quads
from gpu.ops.step_buffer import MAX_SAMPLES
from gpu.step import Sample, Sampled
from tests.gpu.ops.rig import Rig

pytestmark = pytest.mark.parity

SamplerFor = Callable[[int], SamplerRig]
MASKED = -200.0
"""Stands for −∞: e^−200 is 0 in float32."""


@pytest.fixture(scope="module")
def sampler(rig: Rig) -> SamplerFor:
    return cache(lambda vocab_size: SamplerRig(rig, vocab_size))


def choose(sampler: SamplerRig, logits: Array, samples: Sequence[Sample]) -> list[Sampled]:
    """Return the choices for one row with each of the settings."""
    found: list[Sampled] = []
    for start in range(0, len(samples), MAX_SAMPLES):
        part = [
            replace(s, seed=2026, index=start + i)
            for i, s in enumerate(samples[start:][:MAX_SAMPLES])
        ]
        found += sampler.choose(np.repeat(logits[None], len(part), 0), part)
    return found


def check_all(sampler: SamplerRig, logits: Array, samples: Sequence[Sample]) -> list[bool]:
    """Check each against the reference, −∞ as `MASKED`; return which have only one answer."""
    found = choose(sampler, logits, samples)
    finite = np.where(np.isinf(logits), np.float32(MASKED), logits)
    return [
        check_draw(sampler.rig, got, finite, [], replace(sample, seed=2026, index=i))
        for i, (got, sample) in enumerate(zip(found, samples, strict=True))
    ]


# ---- where slices and strips meet ---------------------------------------------------------------


@pytest.mark.ci
@pytest.mark.parametrize("vocab", [255, 257, 300, 8191, 8193, 49_152, 128_256])
def test_the_most_likely_token_is_found_at_every_edge(sampler: SamplerFor, vocab: int) -> None:
    quads = strip_quads(vocab)
    lane, slice_ = 4 * SLICE_LANES, 4 * SLICE_LANES * quads
    edges = {0, 3, 4, lane - 1, lane, slice_ - 1, slice_, slice_ + 4, vocab - 5, vocab - 1}
    ids = sorted(id for id in edges if id < vocab)
    body = np.random.default_rng(vocab).normal(0, 1, vocab).astype(np.float32)
    logits = np.repeat(body[None], len(ids), 0)
    logits[np.arange(len(ids)), ids] = 20.0
    for sample in (settings(temperature=0.0), settings(top_k=1), settings(top_p=0.5)):
        for start in range(0, len(ids), MAX_SAMPLES):
            rows = logits[start : start + MAX_SAMPLES]
            found = sampler(vocab).choose(rows, [sample] * len(rows))
            assert [one.id for one in found] == ids[start : start + MAX_SAMPLES]
            assert {one.rank for one in found} == {0}


@pytest.mark.parametrize("vocab", [4096, 49_152])
def test_the_most_likely_tokens_may_share_a_strip(sampler: SamplerFor, vocab: int) -> None:
    """Summaries of strips exclude little then: many tokens reach a key that few strips do."""
    rng = np.random.default_rng(vocab)
    logits = rng.normal(0, 1, vocab).astype(np.float32)
    logits[:2048] += np.where(np.arange(2048) // 4 % SLICE_LANES < 16, 10, 0).astype(np.float32)
    some = [settings(temperature=0.0), settings(top_k=30), settings(top_k=100, top_p=0.9)]
    assert all(check_all(sampler(vocab), logits, [*some, settings(top_p=0.3), settings(min_p=0.3)]))


# ---- below the tokens that are sorted first -----------------------------------------------------

COUNTS = (19, 20, 21, 63, 64, 65, 127, 128, 129, 255, 256, 257, 300, 1000, 3333)


@pytest.mark.parametrize("vocab", [4096, 49_152, 128_256])
def test_top_k_of_any_size_is_exact(sampler: SamplerFor, vocab: int) -> None:
    logits = np.random.default_rng(vocab).normal(0, 3, vocab).astype(np.float32)
    counts = (*COUNTS, vocab - 1, vocab)
    found = choose(sampler(vocab), logits, [settings(top_k=k) for k in counts])
    assert [one.n_kept for one in found] == list(counts)
    check_all(sampler(vocab), logits, [settings(top_k=k, top_p=0.9, min_p=0.01) for k in counts])


@pytest.mark.parametrize("spread", [0.01, 0.5, 3.0])
@pytest.mark.parametrize("vocab", [4096, 49_152])
def test_top_p_keeps_more_tokens_than_are_sorted(
    sampler: SamplerFor, vocab: int, spread: float
) -> None:
    rng = np.random.default_rng(vocab)
    logits = rng.normal(0, spread, vocab).astype(np.float32)
    some = [settings(top_p=p) for p in (0.3, 0.6, 0.9, 0.95, 0.99, 0.9999)]
    some += [settings(min_p=p) for p in (1e-6, 1e-3, 0.3)]
    some += [settings(top_p=0.95, min_p=1e-3), settings(), settings(top_k=vocab // 2, top_p=0.9)]
    check_all(sampler(vocab), logits, some)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e20])
def test_the_threshold_search_is_exact_for_logits_of_any_size(
    sampler: SamplerFor, scale: float
) -> None:
    """Logits around zero and far from it: the threshold is searched by the bits of sort keys."""
    logits = (np.random.default_rng(7).normal(0, 1, 4096) * scale).astype(np.float32)
    for k in COUNTS:
        order = np.sort(logits)[::-1]
        (one,) = choose(sampler(4096), logits, [settings(top_k=k)])
        assert one.n_kept == np.count_nonzero(logits >= order[k - 1])


@pytest.mark.parametrize("vocab", [4096, 49_152])
@pytest.mark.parametrize("first", [0, 10, 100, 270])
def test_more_ties_than_are_sorted(sampler: SamplerFor, vocab: int, first: int) -> None:
    """Some tokens in front, 500 that tie, then all others; scattered over the vocabulary."""
    rng = np.random.default_rng(first)
    order = rng.permutation(vocab)
    logits = np.empty(vocab, np.float32)
    logits[order] = np.repeat([7.0, 6.0, -1.0], [first, 500, vocab - first - 500])
    logits[order[:first]] += rng.normal(0, 0.1, first).astype(np.float32)
    some = [settings(temperature=0.0)]
    some += [settings(top_k=k) for k in (1, 10, 11, 20, 271, first + 499, first + 500, first + 501)]
    some += [settings(top_p=p) for p in (0.0, 0.2, 0.5, 0.97)]
    some += [settings(min_p=p) for p in (0.2, 1e-4)] + [settings()]
    decided = check_all(sampler(vocab), logits, some)
    assert np.mean(decided) > 0.5


@pytest.mark.ci
@pytest.mark.parametrize("vocab", [257, 49_152, 128_256])
def test_of_equal_tokens_the_draw_takes_the_one_at_its_place(
    sampler: SamplerFor, vocab: int
) -> None:
    some = [settings(), settings(top_k=5), settings(top_p=0.1), settings(min_p=1.0)]
    found = choose(sampler(vocab), np.full(vocab, 1.25, np.float32), some * 4)
    for one in found:
        assert one.n_kept == vocab
        assert abs(one.id - one.draw * vocab) <= 1 + 1e-5 * vocab
        assert [c.id for c in one.candidates] == list(range(20))


@pytest.mark.ci
@pytest.mark.parametrize("vocab", [31, 4096, 49_152])
@pytest.mark.parametrize("n_finite", [1, 5, 20, 29, 700])
def test_masked_tokens_are_ranked_last_and_never_drawn(
    sampler: SamplerFor, vocab: int, n_finite: int
) -> None:
    rng = np.random.default_rng(n_finite)
    logits = np.full(vocab, -np.inf, np.float32)
    ids = rng.permutation(vocab)[:n_finite]
    logits[ids] = rng.normal(0, 2, len(ids))
    some = [settings(temperature=0.0), settings(), settings(top_k=3), settings(top_k=25)]
    some += [settings(top_p=0.9), settings(top_p=0.9999), settings(min_p=0.1), settings(min_p=1e-9)]
    check_all(sampler(vocab), logits, some)
    assert {one.id for one in choose(sampler(vocab), logits, some)} <= set(ids.tolist())
