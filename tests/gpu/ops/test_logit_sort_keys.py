"""The first half of the sampler: its sort keys and its summaries of strips."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpu.ops.sampling import SLICE_LANES, slices, strip_quads
from gpu.reference import sampler as reference
from gpu.sampling_params import TokenBias
from gpu.step import Sample
from gpu.webgpu.kernels import Kernels
from tests.gpu.ops.rig import ROUNDING, Array, Rig, compare
from tests.gpu.ops.sampler_checks import Expected
from tests.gpu.ops.sampler_rig import SamplerRig, settings

pytestmark = pytest.mark.parity

# Whole slices of every width of strip, one token more and one less; no whole quad; large ones.
VOCABS = (1, 2, 31, 255, 256, 257, 8191, 8192, 8193, 16_385, 32_771, 49_152, 128_256)


COUNTING = {"frequency_penalty": -0.3, "presence_penalty": 2.0}


def logits_of_keys(keys: Array) -> Array:
    bits = np.where(keys >> 31, keys & 0x7FFFFFFF, ~keys)
    return bits.astype(np.uint32).view(np.float32)


def random_biases(rng: np.random.Generator, vocab: int, most: int) -> tuple[TokenBias, ...]:
    """Biases of up to `most` tokens, the last of the vocabulary among them, in any order."""
    ids = rng.permutation(vocab)[: max(0, most - 1)].tolist()
    ids = list(dict.fromkeys([*ids, vocab - 1])) if most else []
    return tuple(TokenBias(id, float(np.float32(rng.normal(0, 5)))) for id in ids)


def left(sampler: SamplerRig, logits: Array, sample: Sample, context: list[int]) -> Array:
    """The row of sort keys, then five summaries of each strip; after another sample's."""
    sampler.choose(np.stack([logits[::-1], logits]), [settings(), sample], [[], context])
    return sampler.keys()[1]


def by_strip(keys: Array, vocab: int) -> Array:
    """Keys as (strips, tokens of a strip)."""
    parts = keys.reshape(slices(vocab), strip_quads(vocab), SLICE_LANES, 4)
    return parts.transpose(0, 2, 1, 3).reshape(-1, strip_quads(vocab) * 4)


@pytest.mark.parametrize("vocab", VOCABS)
@pytest.mark.parametrize(
    ("sample", "n_biases"),
    [
        pytest.param(settings(), 0, id="plain"),
        pytest.param(settings(temperature=0.0), 0, id="greedy"),
        pytest.param(settings(temperature=0.7, repetition_penalty=1.3), 0, id="scaled"),
        pytest.param(settings(), 300, id="biased"),
        pytest.param(settings(index=999, **COUNTING), 0, id="counted"),
        pytest.param(
            settings(index=999, temperature=0.7, repetition_penalty=1.3, **COUNTING), 77, id="all"
        ),
    ],
)
def test_sort_keys_are_the_scaled_logits_and_summaries_those_of_their_strips(
    rig: Rig, vocab: int, sample: Sample, n_biases: int
) -> None:
    rng = np.random.default_rng(vocab)
    sample = replace(sample, logit_bias=random_biases(rng, vocab, n_biases))
    logits = rng.normal(0, 3, vocab).astype(np.float32)
    if vocab > 2:
        logits[rng.permutation(vocab)[:3]] = [0.0, -0.0, -np.inf]
    context = rng.integers(0, vocab, vocab // 3).tolist() + [vocab // 2] * 9
    row = left(SamplerRig(rig, vocab), logits, sample, context)

    strips = slices(vocab) * SLICE_LANES
    keys, summaries = np.split(row, [4 * strips * strip_quads(vocab)])
    assert not keys[vocab:].any(), "a key behind the vocabulary"
    scaled = logits_of_keys(keys[:vocab])
    assert np.array_equal(
        np.argsort(scaled, kind="stable"), np.argsort(keys[:vocab], kind="stable")
    )
    want = reference.scale_logits(logits, context, sample)
    finite = np.isfinite(want)
    added = Expected(logits, context, sample).added()[finite]
    assert np.array_equal(scaled[~finite], want[~finite])
    case, want = f"{vocab} tokens, {sample}", want[finite]
    bound = 8 * ROUNDING * (np.abs(want) + added)
    compare("logit_sort_keys.scaled", case, scaled[finite], want, bound, vocab)

    greatest, *rest, _ = summaries.reshape(5, strips)
    assert np.array_equal(greatest, by_strip(keys, vocab).max(1))
    mass, raw_top, raw_mass = (part.view(np.float32).astype(np.float64) for part in rest)
    used = np.isfinite(logits_of_keys(greatest)) & (greatest > 0)
    tops = logits_of_keys(greatest[used]).astype(np.float64)
    check_mass(f"{case}, scaled", scaled, tops, mass[used])
    check_mass(f"{case}, raw", logits, raw_top[used], raw_mass[used])


def check_mass(case: str, logits: Array, tops: Array, masses: Array) -> None:
    """Check log Σ exp computed from the strips; a strip's maximum is its largest, so its mass is at
    least 1."""
    assert (masses >= 1).all()
    assert (masses <= 4 * 8 * (1 + 64 * ROUNDING)).all()
    assert tops.max() == logits.max()
    want = np.exp(logits.astype(np.float64) - tops.max()).sum()
    got = (masses * np.exp(tops - tops.max())).sum()
    compare(
        "logit_sort_keys.mass", case, np.array([got]), np.array([want]), 256 * ROUNDING * want, 0
    )


@pytest.mark.parametrize("vocab", VOCABS)
@pytest.mark.parametrize("sample", [settings(), settings(temperature=0.7, index=99, **COUNTING)])
def test_lanes_of_one_strip_and_of_four_write_the_same(
    rig: Rig, vocab: int, sample: Sample
) -> None:
    """As on a GPU and as on a software device, with a grammar too."""
    rng = np.random.default_rng(vocab)
    logits = rng.normal(0, 3, (2, vocab)).astype(np.float32)
    context = rng.integers(0, vocab, 50).tolist()
    allowed = rng.permutation(vocab)[: (vocab + 1) // 2].tolist()
    found = []
    for in_quads in (False, True):
        device = replace(rig.device, policy=replace(rig.device.policy, strips_in_quads=in_quads))
        sampler = SamplerRig(Rig(device, Kernels(device)), vocab)
        sampler.choose(logits, [sample, sample], [context, context], [(), allowed])
        found.append(sampler.keys())
    strips = slices(vocab) * SLICE_LANES
    end = found[0].shape[1] - strips  # the last summary is of the row with a grammar alone
    assert np.array_equal(found[0][0, :end], found[1][0, :end])
    assert np.array_equal(found[0][1], found[1][1])


def test_sort_keys_of_every_kind_of_number_keep_their_order(rig: Rig) -> None:
    """Zeros of both signs tie; no logit gets the sort key of an absent token, whatever its bits."""
    rising = [-np.inf, -3.4e38, -1.0, -1e-30, -0.0, 0.0, 1e-30, 1.0, 3.4e38, np.inf]
    logits = np.array([*rising, np.nan, 0.0, 0.0], np.float32)
    logits.view(np.uint32)[-2:] = [0xFFFFFFFF, 0x7FFFFFFF]
    keys = left(SamplerRig(rig, len(logits)), logits, settings(), [])[: len(logits)]
    assert keys[4] == keys[5]
    assert (np.diff(np.delete(keys[: len(rising)], 4).astype(np.int64)) > 0).all()
    assert 1 <= keys.min() <= keys.max() < 0xFFFFFFFF
