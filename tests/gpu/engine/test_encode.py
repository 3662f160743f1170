"""Texts encoded by an embedding model beside the bundled model, while it writes and while not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from app import tale
from gpu import Engine, SamplingParams
from gpu.engine.backends import check_options
from gpu.errors import InvalidRequest, ModelError
from gpu.inspection.requests import MAX_ENCODED, Encode, EncoderAttention, LogitLens
from gpu.load_options import LoadOptions
from tests.gpu.models import random_bert
from tests.gpu.runners.test_encoder import BOUND, texts_of

TEXTS = texts_of([9, 1, 40, 16, 3])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_bert.write(tmp_path_factory.mktemp("encoder"), max_seq_length=100)


@pytest.fixture(scope="module", params=["wgpu", "torch"])
def engine(request: pytest.FixtureRequest, folder: Path) -> Iterator[Engine]:
    options = LoadOptions(backend=request.param, embedding_model=folder, context=256)
    opened = Engine.load(tale.model_dir(), options)
    yield opened
    opened.close()


def test_the_engine_says_what_it_has(engine: Engine, folder: Path) -> None:
    info = engine.info.embedding
    assert info is not None
    assert (info.name, info.hidden_size, info.max_tokens) == (folder.name, 60, 100)
    assert (info.pooling, info.normalize, info.vocab_size) == ("mean", True, 101)
    assert info.n_bytes > 4 * 101 * 60


@pytest.mark.ci
def test_vectors_are_the_same_beside_a_text_that_is_written(engine: Engine, folder: Path) -> None:
    """And the text is the same as alone."""
    ids, params = engine.tokenizer.encode("Once"), SamplingParams(max_tokens=60, seed=5)
    alone = [token.id for token in engine.generate(ids, params)]
    idle = engine.inspect(Encode(TEXTS)).result(120)["vectors"]
    np.testing.assert_allclose(idle, random_bert.reference(folder, TEXTS), rtol=0, atol=BOUND)
    written, asked = [], None
    for token in engine.generate(ids, params):
        written.append(token.id)
        if len(written) == 5:
            asked = [engine.inspect(Encode(TEXTS), asker) for asker in range(2)]
    assert written == alone
    assert asked is not None
    for future in asked:
        np.testing.assert_array_equal(future.result(120)["vectors"], idle)


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ([], f"expected 1 to {MAX_ENCODED} texts, but got 0"),
        ([[1]] * (MAX_ENCODED + 1), f"expected 1 to {MAX_ENCODED} texts"),
        ([[1], []], "expected 1 to 100 ids, but got 0"),
        ([[1] * 101], "expected 1 to 100 ids, but got 101"),
        ([[101]], "expected ids from 0 to 100"),
        ([[-1]], "expected ids from 0 to 100"),
    ],
)
def test_texts_that_it_cannot_encode_are_refused(
    engine: Engine, texts: list[list[int]], words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words):
        engine.inspect(Encode(texts)).result(60)


def test_attention_is_read_beside_a_text_that_is_written(engine: Engine, folder: Path) -> None:
    ids = TEXTS[2]
    alone = engine.inspect(EncoderAttention(ids)).result(120)["weights"]
    np.testing.assert_allclose(alone, random_bert.attention(folder, ids), rtol=0, atol=BOUND)
    asked = None
    for token in engine.generate([5, 6], SamplingParams(max_tokens=40, seed=5, ignore_eos=True)):
        if token.index == 5:
            asked = [engine.inspect(EncoderAttention(ids)), engine.inspect(Encode([ids]))]
    assert asked is not None
    np.testing.assert_array_equal(asked[0].result(120)["weights"], alone)
    vectors = asked[1].result(120)["vectors"]
    np.testing.assert_allclose(vectors, random_bert.reference(folder, [ids]), rtol=0, atol=BOUND)


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([], "expected 1 to 64 ids, but got 0"),
        ([1] * 65, "expected 1 to 64 ids, but got 65"),
        ([101], "expected ids from 0 to 100"),
    ],
)
def test_attention_that_it_cannot_read_is_refused(
    engine: Engine, ids: list[int], words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words):
        engine.inspect(EncoderAttention(ids)).result(60)


def test_without_an_embedding_model_the_answer_says_so() -> None:
    engine = Engine.load(tale.model_dir(), LoadOptions(context=64))
    try:
        assert engine.info.embedding is None
        with pytest.raises(InvalidRequest, match="start the server with --embedding-model"):
            engine.inspect(Encode([[1]])).result(60)
        with pytest.raises(InvalidRequest, match="start the server with --embedding-model"):
            engine.inspect(EncoderAttention([1])).result(60)
        engine.inspect(LogitLens([1, 2], 1, 2)).result(60)
    finally:
        engine.close()


def test_it_needs_the_device_of_the_model(folder: Path) -> None:
    with pytest.raises(ModelError, match="--embedding-model"):
        check_options(LoadOptions(embedding_model=folder, pipeline_parallel_size=2))
