"""Greenlists are those of transformers, for both of its schemes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import WatermarkLogitsProcessor

from gpu.watermark import greenlist
from gpu.watermark.greenlist import Greenlists, WatermarkConfig, in_bitmask

CONFIGS = [
    WatermarkConfig(),
    WatermarkConfig(0.5, 1),
    WatermarkConfig(0.1, 2**31 - 1),
    WatermarkConfig(0.99, 7),
    WatermarkConfig(0.25, 15485863, "selfhash"),
    WatermarkConfig(0.4, 2**31 - 1, "selfhash", 4),
]


def of_transformers(config: WatermarkConfig, vocab_size: int) -> WatermarkLogitsProcessor:
    return WatermarkLogitsProcessor(
        vocab_size,
        "cpu",
        config.greenlist_ratio,
        2.0,
        config.hashing_key,
        config.seeding_scheme,
        config.context_width,
    )


@pytest.mark.parametrize("vocab_size", [2, 33, 4099, 49_152, 262_144])
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_it_is_the_one_of_transformers(config: WatermarkConfig, vocab_size: int) -> None:
    rng = np.random.default_rng(vocab_size)
    own, theirs = Greenlists(vocab_size), of_transformers(config, vocab_size)
    for last in (0, vocab_size - 1, int(rng.integers(vocab_size))):
        ids = [*rng.integers(0, vocab_size, 5).tolist(), last]
        want = theirs._get_greenlist_ids(torch.tensor(ids)).tolist()
        bitmask = own.bitmask(config, ids)
        bits = np.unpackbits(bitmask.view(np.uint8), bitorder="little")
        assert sorted(want) == np.flatnonzero(bits).tolist()
        assert in_bitmask(bitmask, last) == (last in want)


@pytest.mark.parametrize("scheme", ["lefthash", "selfhash"])
def test_a_token_is_green_by_those_before_it(scheme: greenlist.SeedingScheme) -> None:
    config, rng = WatermarkConfig(0.5, 99, scheme), np.random.default_rng(0)
    own, theirs = Greenlists(257), of_transformers(config, 257)
    for ids in rng.integers(0, 257, (40, 3)).tolist():
        prefix = ids if scheme == "selfhash" else ids[:-1]
        green = theirs._get_greenlist_ids(torch.tensor(prefix)).tolist()
        assert own.is_green(config, ids) == (ids[-1] in green)


def test_the_kept_greenlists_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greenlist, "CACHE_BYTES", 1000)
    own, config = Greenlists(1024), WatermarkConfig()  # 128 bytes each
    first = own.bitmask(config, [0])
    for id in range(7):
        own.bitmask(config, [id])
    assert own.bitmask(config, [0]) is first, "seven of them fit"
    for id in range(8, 15):
        own.bitmask(config, [id])
    again = own.bitmask(config, [0])
    assert again is not first
    assert np.array_equal(again, first)
