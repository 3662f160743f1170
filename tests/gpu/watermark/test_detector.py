"""The detector has the numbers of transformers, and z by window."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import PreTrainedConfig, WatermarkDetector, WatermarkingConfig

from gpu.errors import InvalidRequest
from gpu.watermark.detector import detect, z_score
from gpu.watermark.greenlist import Greenlists, SeedingScheme, WatermarkConfig

VOCAB = 300
SCHEMES: list[tuple[SeedingScheme, int]] = [
    ("lefthash", 1),
    ("lefthash", 3),
    ("selfhash", 1),
    ("selfhash", 3),
]


def marked(config: WatermarkConfig, n: int) -> list[int]:
    """Return a text with more green tokens than by chance, and with repeated n-grams."""
    rng, lists = np.random.default_rng(n), Greenlists(VOCAB)
    ids = [1, 2, 3]
    while len(ids) < n:
        options = rng.integers(2, 40, 3).tolist()
        green = [id for id in options if lists.is_green(config, [*ids, id])]
        ids.append((green or options)[0])
    return ids


@pytest.mark.parametrize("unique", [False, True], ids=["all", "unique"])
@pytest.mark.parametrize(("scheme", "width"), SCHEMES)
def test_it_has_the_numbers_of_transformers(
    scheme: SeedingScheme, width: int, unique: bool
) -> None:
    config = WatermarkConfig(0.3, 12345, scheme, width)
    detector = WatermarkDetector(
        PreTrainedConfig(vocab_size=VOCAB, bos_token_id=0),
        "cpu",
        WatermarkingConfig(
            greenlist_ratio=0.3, hashing_key=12345, seeding_scheme=scheme, context_width=width
        ),
        ignore_repeated_ngrams=unique,
    )
    for ids in (marked(config, 80), np.random.default_rng(3).integers(2, 40, 60).tolist()):
        want = detector(torch.tensor([ids]), return_dict=True)
        got = detect(ids, config, Greenlists(VOCAB), ignore_repeated_ngrams=unique)
        assert got.num_tokens_scored == want.num_tokens_scored[0]
        assert got.num_green_tokens == want.num_green_tokens[0]
        assert got.prediction == want.prediction[0]
        for name in ("green_fraction", "z_score", "p_value", "confidence"):
            assert getattr(got, name) == pytest.approx(getattr(want, name)[0], rel=1e-6, abs=1e-9)


def test_a_window_sees_where_the_watermark_begins() -> None:
    config = WatermarkConfig(0.3, 12345)
    plain = np.random.default_rng(4).integers(2, 40, 100).tolist()
    found = detect([*plain, *marked(config, 100)], config, Greenlists(VOCAB), window=40)
    assert len(found.green) == len(found.window_z) == 200
    assert found.green[0] is None
    assert found.window_z[:40] == (None,) * 40, "one token has no hash, and 39 are too few"
    last = [bool(green) for green in found.green[-40:]]
    assert found.window_z[-1] == pytest.approx(z_score(sum(last), 40, 0.3))
    early = [z for z in found.window_z[40:90] if z is not None]
    assert max(early) < 3 < found.window_z[-1]


@pytest.mark.parametrize("ids", [[], [5]])
def test_a_text_without_a_scored_token_is_refused(ids: list[int]) -> None:
    with pytest.raises(InvalidRequest, match="2 are the fewest"):
        detect(ids, WatermarkConfig(), Greenlists(VOCAB))
