"""all-MiniLM-L6-v2, as published, beside `transformers`: tokens, vectors, and that texts of one
meaning are close."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from gpu import Footprint
from gpu.runners.encoder import Encoder
from gpu.text.tokenizer import Tokenizer
from gpu.webgpu.device import Device
from tests.gpu.models import random_bert
from tests.gpu.ops.rig import compare
from tests.gpu.runners.test_encoder import BOUND, finish
from tests.real_weights import real_weights

TEXTS = (
    "The cat is asleep on the windowsill.",
    "A feline naps by the window.",
    "Stock prices fell sharply on Monday.",
    "naïve café 12345 — 東京",
    "word " * 400,
)
"""Three sentences, two of which mean the same; letters of other scripts; more than the encoder
takes."""


@pytest.fixture(scope="module")
def folder() -> Path:
    return real_weights("all-MiniLM-L6-v2")


def test_vectors_are_those_of_sentence_transformers(folder: Path) -> None:
    encoder = Encoder.load(folder, Device.open())
    tokenizer, reference = Tokenizer.load(folder), AutoTokenizer.from_pretrained(folder)
    assert (encoder.max_tokens, encoder.sentence.normalize) == (256, True)
    n_bytes, known = encoder.info.n_bytes, Footprint.of_encoder(folder).total
    assert n_bytes <= known <= 1.1 * n_bytes
    texts = []
    for text in TEXTS:
        whole = reference(text, truncation=True, max_length=encoder.max_tokens).input_ids
        most = encoder.max_tokens - 2
        inside = tokenizer.encode(text, bos=False, specials=False)[:most]
        assert [*tokenizer.prefix, *inside, *tokenizer.suffix] == whole
        texts.append(whole)
    found, _ = finish(encoder.vectors(texts))
    wanted = random_bert.reference(folder, texts)
    compare("all-MiniLM-L6-v2.vectors", "f32", found, wanted, BOUND, 0)
    cat, feline, stocks = found[:3]
    assert cat @ feline > 0.5
    assert max(cat @ stocks, feline @ stocks) < 0.2
