"""Encoder-decoders against transformers: logits, and the attention of all three kinds."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from gpu.config import ModelConfig
from gpu.errors import ModelError
from gpu.pytorch.encoder_decoder import TorchEncoderDecoder
from gpu.runner import EncoderDecoder
from gpu.runners.encoder_decoder import WgpuEncoderDecoder
from gpu.webgpu.device import Device
from tests.gpu.models import random_bert, random_t5
from tests.gpu.models.random_t5 import V1_1, Wanted

BOUND = 1e-4
"""Largest error of a logit, and of an attention weight."""
MT5: dict[str, Any] = {"model_type": "mt5"}
UMT5: dict[str, Any] = {"model_type": "umt5", "num_heads": 3, "d_kv": 20}
NEAR = {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 11}

Result = TypeVar("Result")


def finish(pieces: Generator[None, None, Result]) -> tuple[Result, int]:
    """Return the result, and in how many pieces it came."""
    n = 0
    while True:
        try:
            next(pieces)
        except StopIteration as done:
            return done.value, n
        n += 1


def text_of(n: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(2, 101, n).tolist()


def run(model: EncoderDecoder, ids: list[int], decoded: list[int]) -> Wanted:
    """Return what a model makes of a text and what its decoder reads."""
    encoder, _ = finish(model.encode(ids))
    tokens = [finish(model.decode(token, at))[0] for at, token in enumerate(decoded)]
    n = len(decoded)
    own = [np.pad(t.attention, ((0, 0), (0, 0), (0, n - t.attention.shape[-1]))) for t in tokens]
    return Wanted(
        np.stack([token.logits for token in tokens]),
        encoder,
        np.stack(own, axis=2),
        np.stack([token.cross for token in tokens], axis=2),
    )


def expect_equal(found: Wanted, wanted: Wanted) -> None:
    for name in ("logits", "encoder", "decoder", "cross"):
        got, want = getattr(found, name), getattr(wanted, name)
        np.testing.assert_allclose(got, want, rtol=0, atol=BOUND, err_msg=name)


@pytest.fixture(params=["wgpu", "torch"])
def load(request: pytest.FixtureRequest, device: Device) -> Callable[[Path], EncoderDecoder]:
    """Return what opens an encoder-decoder, of each backend."""
    if request.param == "torch":
        return TorchEncoderDecoder.load
    return lambda folder: WgpuEncoderDecoder.load(folder, device)


@pytest.mark.parity
@pytest.mark.parametrize(
    "sizes",
    [
        {},
        V1_1,
        MT5,
        UMT5,
        V1_1 | NEAR,
        {"feed_forward_proj": "gated-silu", "num_decoder_layers": 4},
    ],
    ids=["t5", "t5-v1.1", "mt5", "umt5", "near", "silu"],
)
def test_it_computes_what_transformers_does(
    load: Callable[[Path], EncoderDecoder], tmp_path: Path, sizes: dict[str, Any]
) -> None:
    """For texts of one token, of parts of KV blocks, and the longest; one after the other."""
    model = load(random_t5.write(tmp_path, **sizes))
    for n, m in ((model.max_tokens, 5), (1, 2), (17, model.max_written if not sizes else 18)):
        ids, decoded = text_of(n, seed=n), [0, *text_of(m - 1, seed=m)]
        wanted = random_t5.reference(tmp_path, ids, decoded)
        assert np.abs(wanted.logits).max() > 0.1
        expect_equal(run(model, ids, decoded), wanted)


@pytest.mark.ci
def test_it_computes_the_same_bits_in_pieces(device: Device, tmp_path: Path) -> None:
    model = WgpuEncoderDecoder.load(random_t5.write(tmp_path, **V1_1), device)
    ids = text_of(9)
    whole = run(model, ids, [0, 7])
    run(model, text_of(30), [0, 3, 4])  # leaves its own keys and values
    encoder, n = finish(model.encode(ids, in_pieces=True))
    assert n > 4 * random_t5.SIZES["num_layers"]
    np.testing.assert_array_equal(encoder, whole.encoder)
    for at, token in enumerate((0, 7)):
        found, n = finish(model.decode(token, at, in_pieces=True))
        assert n > 8 * random_t5.SIZES["num_decoder_layers"]
        np.testing.assert_array_equal(found.logits, whole.logits[at])
        np.testing.assert_array_equal(found.cross, whole.cross[:, :, at])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"feed_forward_proj": "gated-tanh"}, "feed_forward_proj must be one of relu, gated-gelu"),
        ({"d_kv": 6}, "head_dim 6 is not supported"),
        ({"relative_attention_max_distance": 16}, "must be an integer from 17"),
        ({"num_decoder_layers": 0}, "num_decoder_layers must be an integer from 1"),
        (
            {"decoder_start_token_id": 101},
            "decoder_start_token_id must be an integer from 0 to 100",
        ),
        ({"num_decoder_layers": 3}, r"has no tensor decoder\.block\.2\.layer\.0"),
        ({"model_type": "bert"}, "is an encoder, .* --embedding-model"),
        ({"model_type": "llama"}, "supported: mt5, t5, umt5"),
    ],
)
def test_what_it_cannot_run_is_refused(
    device: Device, tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    path = random_t5.write(tmp_path) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ModelError, match=message):
        WgpuEncoderDecoder.load(tmp_path, device)


def test_other_options_refuse_it(device: Device, tmp_path: Path) -> None:
    folder = random_t5.write(tmp_path / "t5")
    words = "is an encoder-decoder: .* --encoder-decoder-model"
    for read in (ModelConfig.from_folder, ModelConfig.of_encoder):
        with pytest.raises(ModelError, match=words):
            read(folder)
    with pytest.raises(ModelError, match="--embedding-model"):
        WgpuEncoderDecoder.load(random_bert.write(tmp_path / "bert"), device)
