"""Samples of runs with a watermark: its bias acts on the survivors of the filters."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    WatermarkLogitsProcessor,
)

from gpu.checks.sampler import check_draw, check_selfhash_greenlist
from gpu.checks.sampler_rig import SamplerRig, settings
from gpu.checks.sort_keys import with_bins
from gpu.reference import sampler as reference
from gpu.step import Sample
from tests.gpu.ops.rig import Rig
from tests.gpu.ops.test_sampler_allowed import check_allowed

pytestmark = pytest.mark.parity

SETTINGS = [
    settings(watermark_bias=2.0),
    settings(watermark_bias=0.5, temperature=0.0, repetition_penalty=1.3),
    settings(watermark_bias=8.0, temperature=10.0),
    settings(watermark_bias=3.0, top_k=3),
    settings(watermark_bias=2.0, temperature=0.7, top_k=40, top_p=0.9, min_p=0.05),
    settings(),
    settings(watermark_bias=20.0, top_p=0.8),
    settings(watermark_bias=1.0, min_p=1e-6),
]
"""One is without a watermark: its row is not drawn twice."""


@pytest.mark.parametrize("vocab", [1, 33, 257, 4096, 49_152])
@pytest.mark.parametrize("ties", [False, True], ids=["apart", "tied"])
def test_the_bias_acts_on_green_survivors(rig: Rig, vocab: int, ties: bool) -> None:
    rng, sampler = np.random.default_rng(vocab), SamplerRig(rig, vocab)
    decided = []
    for ratio in (0.0, 0.25, 1.0):
        samples = [replace(s, seed=7, index=i) for i, s in enumerate(SETTINGS)]
        logits = rng.normal(0, 3, (len(samples), vocab)).astype(np.float32)
        logits = np.round(logits / 2) / 2 if ties else logits
        seen = [rng.integers(0, vocab, vocab // 3).tolist() for _ in samples]
        green = [rng.random(vocab) < ratio if s.watermark_bias else None for s in samples]
        got = sampler.choose(logits, samples, seen, green=green)
        decided += [
            check_draw(rig, each, logits[i], seen[i], samples[i], green[i])
            for i, each in enumerate(got)
        ]
    # Of a large vocabulary with ties, most tokens are less likely than a sum is wrong by rounding.
    least = 0.4 if ties and vocab == 49_152 else 0.6
    assert np.mean(decided) >= least, "too few of the cases could have failed"


@pytest.mark.ci
def test_a_row_without_a_watermark_has_the_same_bits_beside_one(rig: Rig) -> None:
    logits = np.random.default_rng(0).normal(0, 3, (2, 4099)).astype(np.float32)
    green = np.arange(4099) % 3 == 0
    sampler, plain = SamplerRig(rig, 4099), settings(seed=3, top_p=0.9)
    alone = sampler.choose(logits[:1], [plain])
    marked = replace(plain, watermark_bias=2.0)
    assert sampler.choose(logits, [plain, marked], green=[None, green])[0] == alone[0]


@pytest.mark.ci
def test_a_row_sorted_into_bins(rig: Rig) -> None:
    rng, vocab = np.random.default_rng(5), 9973
    sampler = SamplerRig(with_bins(rig), vocab)
    samples = [replace(s, seed=9, index=i) for i, s in enumerate(SETTINGS)]
    logits = rng.normal(0, 1, (len(samples), vocab)).astype(np.float32)
    green = [rng.random(vocab) < 0.25 if s.watermark_bias else None for s in samples]
    got = sampler.choose(logits, samples, [[] for _ in samples], green=green)
    decided = [
        check_draw(sampler.rig, each, logits[i], [], samples[i], green[i])
        for i, each in enumerate(got)
    ]
    assert np.mean(decided) >= 0.6


@pytest.mark.ci
def test_selfhash_of_rows_sorted_into_bins(rig: Rig) -> None:
    check_selfhash_greenlist(with_bins(rig), 9973)


def test_no_forbidden_token_is_green(rig: Rig) -> None:
    """With a grammar, the bias acts on the allowed tokens of the greenlist."""
    rng, vocab = np.random.default_rng(2), 257
    sampler = SamplerRig(rig, vocab)
    sample = settings(seed=1, watermark_bias=4.0, top_p=0.95)
    logits = rng.normal(0, 3, (1, vocab)).astype(np.float32)
    green, ids = rng.random(vocab) < 0.5, np.arange(3, 90)
    (got,) = sampler.choose(logits, [sample], [[]], [ids.tolist()], [green])
    assert check_allowed(rig, got, logits[0], [], sample, ids, green[ids])


@pytest.mark.parametrize("sample", SETTINGS, ids=str)
def test_the_twin_has_the_probabilities_of_transformers(sample: Sample) -> None:
    vocab, ids = 4099, [5, 17, 33]
    logits = np.random.default_rng(1).normal(0, 3, vocab).astype(np.float32)
    processor = WatermarkLogitsProcessor(vocab, "cpu", 0.25, sample.watermark_bias)
    green = np.zeros(vocab, bool)
    green[processor._get_greenlist_ids(torch.tensor(ids)).numpy()] = True
    processors = LogitsProcessorList()
    if sample.temperature not in (0, 1):
        processors.append(TemperatureLogitsWarper(sample.temperature))
    if sample.top_k:
        processors.append(TopKLogitsWarper(sample.top_k))
    if sample.top_p < 1:
        processors.append(TopPLogitsWarper(sample.top_p))
    if sample.min_p:
        processors.append(MinPLogitsWarper(sample.min_p))
    processors.append(processor)
    scores = processors(torch.tensor([ids]), torch.from_numpy(logits)[None].double())
    sample = replace(sample, repetition_penalty=1.0)
    d = reference.distribution(logits, ids, sample, green)
    if sample.temperature == 0:
        assert reference.draw(d, 0.0) == int(scores.argmax())
    else:
        np.testing.assert_allclose(d.after, scores[0].softmax(-1).numpy(), rtol=1e-5, atol=1e-9)
