"""Sampling on a GPU from a large vocabulary, whose tokens many workgroups sort into bins first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from gpu.checks.rig import Array
from gpu.checks.sampler import check_draw
from gpu.checks.sampler_rig import SamplerRig, settings
from gpu.checks.sort_keys import with_bins
from gpu.info import AdapterInfo
from gpu.ops import sampling
from gpu.ops.step_buffer import MAX_SAMPLES
from gpu.step import Sample, Sampled
from gpu.webgpu.device_policy import DevicePolicy
from tests.gpu.ops.rig import Rig, as_kind
from tests.gpu.ops.test_sampler_allowed import check_allowed

pytestmark = pytest.mark.parity

SETTINGS = [
    settings(),
    settings(temperature=10.0),
    settings(temperature=0.3),
    settings(temperature=0.0),
    settings(top_k=5),
    settings(top_k=1000),
    settings(top_p=0.9),
    settings(top_p=0.9999),
    settings(min_p=1e-4),
    settings(min_p=0.3, top_p=0.99),
    settings(top_k=2000, top_p=0.95, min_p=1e-3),
    settings(temperature=2.0, repetition_penalty=1.3, top_p=0.8),
]


def binned(rig: Rig) -> Rig:
    """Return a rig that samples as a GPU does from a large vocabulary."""
    return with_bins(rig.on(as_kind(rig.device, software=False)))


def normal(spread: float) -> Callable[[np.random.Generator, int], Array]:
    return lambda rng, n: rng.normal(0, spread, n)


def tied(rng: np.random.Generator, n: int) -> Array:
    return np.round(rng.normal(0, 1.5, n)) * 0.5


def equal(rng: np.random.Generator, n: int) -> Array:
    return np.full(n, rng.normal())


def peaked(rng: np.random.Generator, n: int) -> Array:
    return np.where(np.arange(n) == n // 2, 20.0, rng.normal(0, 1, n))


def strips_tied(rng: np.random.Generator, n: int) -> Array:
    """The most likely tokens alike, so that bins are narrow, and the others far below."""
    return np.where(np.arange(n) % 4 == 0, 1.0, -6.0 + rng.normal(0, 0.1, n))


FAMILIES = {
    "flat": normal(0.01), "hot": normal(0.3), "normal": normal(3.0), "wide": normal(300.0),
    "tied": tied, "equal": equal, "peaked": peaked, "strips_tied": strips_tied,
}  # fmt: skip
LEAST_DECIDED = {"strips_tied": 0.08}
"""Least share of the settings whose result rounding cannot change. Of many tokens that are alike
but for 0.1, few are decided."""


def choose(sampler: SamplerRig, logits: Array, samples: Sequence[Sample]) -> list[Sampled]:
    """Return the choices for one row with each of the settings."""
    rows = np.repeat(logits[None], len(samples), 0)
    return list(sampler.choose(rows, [replace(s, seed=5, index=i) for i, s in enumerate(samples)]))


@pytest.mark.parametrize("vocab", [1, 21, 257, 4099, 49_152, 128_256])
@pytest.mark.parametrize("family", FAMILIES)
def test_draws_from_bins_equal_the_reference(rig: Rig, vocab: int, family: str) -> None:
    rng = np.random.default_rng(vocab)
    logits = FAMILIES[family](rng, vocab).astype(np.float32)
    found = choose(SamplerRig(binned(rig), vocab), logits, SETTINGS)
    decided = [
        check_draw(rig, got, logits, [], replace(sample, seed=5, index=i))
        for i, (got, sample) in enumerate(zip(found, SETTINGS, strict=True))
    ]
    least = LEAST_DECIDED.get(family, 0.3)
    assert np.mean(decided) >= least, "too few of the cases could have failed"


@pytest.mark.slow
def test_a_draw_has_the_same_bits_with_any_number_of_workgroups(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 3,840 tokens, which take 1, 10 or 60 of them."""
    rows = [FAMILIES[family](np.random.default_rng(3), 3840) for family in ("flat", "tied")]
    found = []
    for quads in (16, 99, sampling.GROUP_QUADS):
        monkeypatch.setattr(sampling, "GROUP_QUADS", quads)
        sampler = SamplerRig(binned(rig), 3840)
        found.append([choose(sampler, logits.astype(np.float32), SETTINGS) for logits in rows])
    assert found.count(found[0]) == len(found)


@pytest.mark.ci
@pytest.mark.parametrize("n_finite", [1, 5, 29, 700])
def test_tokens_of_mass_zero_are_not_drawn_from_bins(rig: Rig, n_finite: int) -> None:
    rng = np.random.default_rng(n_finite)
    logits = np.full(4099, -np.inf, np.float32)
    ids = rng.permutation(4099)[:n_finite]
    logits[ids] = rng.normal(0, 2, n_finite)
    found = choose(SamplerRig(binned(rig), 4099), logits, SETTINGS)
    assert {one.id for one in found} <= set(ids.tolist())
    finite = np.where(np.isinf(logits), np.float32(-1e4), logits)
    for i, (got, sample) in enumerate(zip(found, SETTINGS, strict=True)):
        check_draw(rig, got, finite, [], replace(sample, seed=5, index=i))


@pytest.mark.ci
def test_bins_hold_the_tokens_that_a_grammar_allows(rig: Rig) -> None:
    rng = np.random.default_rng(2)
    logits = rng.normal(0, 0.5, (2, 4099)).astype(np.float32)
    allowed = np.sort(rng.permutation(4099)[:900])
    samples = [settings(seed=1), settings(seed=1, top_p=0.9)]
    found = SamplerRig(binned(rig), 4099).choose(logits, samples, [], [allowed.tolist()] * 2)
    for got, row, sample in zip(found, logits, samples, strict=True):
        check_allowed(rig, got, row, [], sample, allowed)


@pytest.mark.parametrize("odd", [np.nan, -np.nan, np.inf])
def test_logits_that_are_not_numbers_leave_bins_in_their_bounds(
    rig: Rig, odd: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Rig, "lane_orders", False)  # which token is chosen is left open
    everywhere, once = np.full(4099, odd), np.where(np.arange(4099) == 5, odd, 1.0)
    logits = np.stack([everywhere, once, np.full(4099, -np.inf)]).astype(np.float32)
    for changes in ({}, {"top_p": 0.5}, {"top_k": 1000, "min_p": 0.5}):
        for one in SamplerRig(binned(rig), 4099).choose(logits, [settings(**changes)] * 3):
            assert not np.isfinite(one.logprob)
            assert 0 <= one.id < 4099


def test_rows_are_sorted_into_bins_by_themselves(rig: Rig) -> None:
    """Greedy rows, which need no bins, between others; all get what they get alone."""
    logits = np.random.default_rng(3).normal(0, 0.3, (MAX_SAMPLES, 4099)).astype(np.float32)
    samples = [
        replace(SETTINGS[i % len(SETTINGS)], seed=7, index=i, slot=i) for i in range(MAX_SAMPLES)
    ]
    sampler = SamplerRig(binned(rig), 4099)
    together = sampler.choose(logits, samples)
    for i in range(0, MAX_SAMPLES, 7):
        assert sampler.choose(logits[i : i + 1], samples[i : i + 1]) == together[i : i + 1]


def test_only_a_gpu_sorts_a_large_vocabulary_into_bins() -> None:
    software, gpu = (DevicePolicy.of(AdapterInfo("", "", "", "", kind)) for kind in (True, False))
    groups = [
        [sampling.bin_groups(vocab, policy) for vocab in (4096, 49_152, 128_256, 600_000)]
        for policy in (software, gpu)
    ]
    assert groups == [[0, 0, 0, 0], [0, 13, 33, 0]]
