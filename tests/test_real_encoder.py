"""all-MiniLM-L6-v2, as published, beside `transformers`: tokens, vectors, and that texts of one
meaning are close."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from app.prompt.encoder_texts import EncoderTexts
from app.retrieval.chunks import ChunkSettings, chunks_of
from app.retrieval.index import Document, EncoderIdentity, Index
from gpu import Footprint, SentenceConfig
from gpu.runners.encoder import WgpuEncoder
from gpu.text.tokenizer import Tokenizer
from gpu.webgpu.device import Device
from tests.app.fake_tokenizer import STORY
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


@pytest.mark.ci
def test_vectors_are_those_of_sentence_transformers(folder: Path) -> None:
    encoder = WgpuEncoder.load(folder, Device.open())
    tokenizer, reference = Tokenizer.load(folder), AutoTokenizer.from_pretrained(folder)
    assert (encoder.max_tokens, encoder.sentence.normalize) == (256, True)
    n_bytes, known = encoder.n_bytes, Footprint.of_encoder(folder).total
    assert n_bytes <= known <= 1.1 * n_bytes
    texts = []
    for text in TEXTS:
        whole = reference(text, truncation=True, max_length=encoder.max_tokens).input_ids
        most = encoder.max_tokens - 2
        inside = tokenizer.encode(text, bos=False)[:most]
        assert [*tokenizer.prefix, *inside, *tokenizer.suffix] == whole
        texts.append(whole)
    found, _ = finish(encoder.vectors(texts))
    wanted = random_bert.reference(folder, texts)
    compare("all-MiniLM-L6-v2.vectors", "f32", found, wanted, BOUND, 0)
    cat, feline, stocks = found[:3]
    assert cat @ feline > 0.5
    assert max(cat @ stocks, feline @ stocks) < 0.2


def test_the_chunk_that_is_found_is_that_of_sentence_transformers(folder: Path) -> None:
    encoder, reference = (
        WgpuEncoder.load(folder, Device.open()),
        AutoTokenizer.from_pretrained(folder),
    )
    texts = EncoderTexts(Tokenizer.load(folder), SentenceConfig.from_folder(folder))
    chunks = chunks_of(texts, STORY, ChunkSettings(40, 8), 1000, has_pages=False)
    whole = [reference(chunk.text).input_ids for chunk in chunks]
    assert [len(ids) - 2 for ids in whole] == [chunk.tokens for chunk in chunks]
    question = "Which animal flew around the lamp?"
    ids = texts.encode([question, *(chunk.text for chunk in chunks)], "", encoder.max_tokens)
    found, _ = finish(encoder.vectors(ids))
    document = Document("story.txt", len(STORY), len(chunks), 0, 40, 8)
    index = Index(EncoderIdentity("MiniLM", ())).added(document, chunks, found[1:])
    wanted = random_bert.reference(folder, [reference(question).input_ids, *whole])
    scores = wanted[1:] @ wanted[0]
    nearest = index.search(found[0], len(chunks), "cosine")
    assert [id for id, _ in nearest] == np.argsort(-scores).tolist()
    np.testing.assert_allclose([score for _, score in nearest], np.sort(scores)[::-1], atol=1e-4)
    assert "he flew around the lamp three times" in chunks[nearest[0][0]].text
