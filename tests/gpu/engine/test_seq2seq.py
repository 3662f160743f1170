"""Texts written by an encoder-decoder beside the bundled model, while it writes and while not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from app import tale
from gpu import Engine, SamplingParams
from gpu.analysis.footprint import Footprint
from gpu.engine.backends import check_options
from gpu.errors import InvalidRequest, ModelError
from gpu.inspection.requests import LogitLens, Seq2Seq
from gpu.load_options import LoadOptions
from tests.gpu.models import random_t5
from tests.gpu.models.random_t5 import V1_1
from tests.gpu.runners.test_encoder_decoder import BOUND, text_of

TEXT = text_of(14, seed=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_t5.write(tmp_path_factory.mktemp("t5"), **V1_1)


@pytest.fixture(scope="module", params=["wgpu", "torch"])
def engine(request: pytest.FixtureRequest, folder: Path) -> Iterator[Engine]:
    options = LoadOptions(backend=request.param, encoder_decoder_model=folder, context=256)
    opened = Engine.load(tale.model_dir(), options)
    yield opened
    opened.close()


def test_the_engine_says_what_it_has(engine: Engine, folder: Path) -> None:
    info = engine.info.encoder_decoder
    assert info is not None
    assert (info.name, info.n_layers, info.n_decoder_layers) == (folder.name, 3, 2)
    assert (info.max_tokens, info.max_written, info.start_id) == (64, 64, 0)
    assert info.kv_token_bytes == 4 * 2 * 2 * 4 * 12  # keys and values, layers, heads
    assert info.n_bytes > 4 * 2 * 101 * 60
    assert engine.info.embedding is None


def test_it_writes_what_transformers_writes(engine: Engine, folder: Path) -> None:
    """Up to the end token, or as much as there is room for."""
    for ids, most in ((TEXT, 20), (text_of(64), 7), ([5], 64)):
        answer = engine.inspect(Seq2Seq(ids, most)).result(300)
        written = answer["written"].tolist()
        assert written == random_t5.generated(folder, ids, most)
        assert answer.info["ended"] == (written[-1] == 1)
        assert len(answer["step_ms"]) == len(written)
        assert min(*answer["step_ms"], answer.info["encode_ms"]) > 0


@pytest.mark.ci
def test_attention_and_probabilities_are_those_of_transformers(
    engine: Engine, folder: Path
) -> None:
    answer = engine.inspect(Seq2Seq(TEXT, 12)).result(300)
    written = answer["written"].tolist()
    wanted = random_t5.reference(folder, TEXT, [0, *written[:-1]])
    for name in ("encoder", "decoder", "cross"):
        np.testing.assert_allclose(answer[name], getattr(wanted, name), rtol=0, atol=BOUND)
    odds = np.exp(wanted.logits - wanted.logits.max(-1, keepdims=True))
    shares = (odds / odds.sum(-1, keepdims=True))[np.arange(len(written)), written]
    np.testing.assert_allclose(answer["probabilities"], shares, rtol=0, atol=BOUND)


def test_a_text_ends_with_an_end_token(tmp_path: Path) -> None:
    """Which the first token of these random weights is."""
    first = random_t5.generated(random_t5.write(tmp_path), TEXT, 1)[0]
    folder = random_t5.write(tmp_path, eos_token_id=first)
    engine = Engine.load(tale.model_dir(), LoadOptions(encoder_decoder_model=folder, context=64))
    try:
        answer = engine.inspect(Seq2Seq(TEXT)).result(120)
        assert (answer["written"].tolist(), answer.info["ended"]) == ([first], True)
    finally:
        engine.close()


@pytest.mark.ci
def test_answers_are_the_same_beside_a_text_that_is_written(engine: Engine) -> None:
    """And to two that ask at once; the text is the same as alone."""
    ids, params = engine.tokenizer.encode("Once"), SamplingParams(max_tokens=40, seed=5)
    alone = [token.id for token in engine.generate(ids, params)]
    questions = [Seq2Seq(TEXT, 5), Seq2Seq(text_of(30), 4)]
    idle = [engine.inspect(question).result(300) for question in questions]
    written, asked = [], []
    for token in engine.generate(ids, params):
        written.append(token.id)
        if len(written) == 5:
            asked = [engine.inspect(question, asker) for asker, question in enumerate(questions)]
    assert written == alone
    for future, wanted in zip(asked, idle, strict=True):
        found = future.result(300)
        for name in ("written", "probabilities", "encoder", "decoder", "cross"):
            np.testing.assert_array_equal(found[name], wanted[name])


@pytest.mark.parametrize(
    ("question", "words"),
    [
        (Seq2Seq([]), "expected 1 to 64 ids, but got 0"),
        (Seq2Seq([1] * 65), "expected 1 to 64 ids, but got 65"),
        (Seq2Seq([101]), "expected ids from 0 to 100"),
        (Seq2Seq([1], 0), "expected max_tokens from 1 to 64, but got 0"),
        (Seq2Seq([1], 65), "expected max_tokens from 1 to 64, but got 65"),
    ],
)
def test_what_it_cannot_answer_is_refused(engine: Engine, question: Seq2Seq, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        engine.inspect(question).result(60)


def test_without_an_encoder_decoder_the_answer_says_so() -> None:
    engine = Engine.load(tale.model_dir(), LoadOptions(context=64))
    try:
        assert engine.info.encoder_decoder is None
        with pytest.raises(InvalidRequest, match="start the server with --encoder-decoder-model"):
            engine.inspect(Seq2Seq([1])).result(60)
        engine.inspect(LogitLens([1, 2], 1, 2)).result(60)
    finally:
        engine.close()


def test_it_needs_the_device_of_the_model(folder: Path) -> None:
    with pytest.raises(ModelError, match="--encoder-decoder-model"):
        check_options(LoadOptions(encoder_decoder_model=folder, pipeline_parallel_size=2))


def test_its_memory_is_known_before_it_is_loaded(folder: Path) -> None:
    """All weights, and 64 tokens in the encoder's layers and twice in the decoder's."""
    footprint = Footprint.of_encoder_decoder(folder)
    assert footprint.dense == 4 * sum(p.numel() for p in random_t5.load(folder).parameters())
    assert footprint.kv_cache == 64 * (3 + 2 * 2) * 4 * 2 * 4 * 12
