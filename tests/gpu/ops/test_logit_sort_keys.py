"""The first half of the sampler: its sort keys and its summaries of strips."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpu.checks.sampler_rig import SamplerRig, settings
from gpu.checks.sort_keys import check_sort_keys, row_keys
from gpu.ops.sampling import SLICE_LANES, slices
from gpu.step import Sample
from gpu.webgpu.kernels import Kernels
from tests.gpu.ops.rig import Rig

pytestmark = pytest.mark.parity

# Whole slices of every width of strip, one token more and one less; no whole quad; large ones.
VOCABS = (1, 2, 31, 255, 256, 257, 8191, 8192, 8193, 16_385, 32_771, 49_152, 128_256)


COUNTING = {"frequency_penalty": -0.3, "presence_penalty": 2.0}


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
    check_sort_keys(rig, vocab, sample, n_biases)


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


@pytest.mark.ci
def test_sort_keys_of_every_kind_of_number_keep_their_order(rig: Rig) -> None:
    """Zeros of both signs tie; no logit gets the sort key of an absent token, whatever its bits."""
    rising = [-np.inf, -3.4e38, -1.0, -1e-30, -0.0, 0.0, 1e-30, 1.0, 3.4e38, np.inf]
    logits = np.array([*rising, np.nan, 0.0, 0.0], np.float32)
    logits.view(np.uint32)[-2:] = [0xFFFFFFFF, 0x7FFFFFFF]
    keys = row_keys(SamplerRig(rig, len(logits)), logits, settings(), [])[: len(logits)]
    assert keys[4] == keys[5]
    assert (np.diff(np.delete(keys[: len(rising)], 4).astype(np.int64)) > 0).all()
    assert 1 <= keys.min() <= keys.max() < 0xFFFFFFFF
