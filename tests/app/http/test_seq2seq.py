"""/api/seq2seq: what the encoder-decoder writes for a text, its attention, and bad requests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpu.inspection.requests import Seq2Seq
from tests.app import fake_inspection
from tests.app.conftest import Site, StartSite
from tests.app.fake_encoder import SEQ2SEQ_INFO, SEQ2SEQ_TEXTS, seq2seq_ids
from tests.app.fake_options import FakeOptions, info_of

URL = "/api/seq2seq"


@pytest.fixture
def site(start_site: StartSite) -> Site:
    return start_site(encoder_decoder=SEQ2SEQ_INFO, seq2seq_texts=SEQ2SEQ_TEXTS)


@pytest.mark.parametrize("most", [3, None])
def test_it_has_the_text_and_who_attends_to_whom(site: Site, most: int | None) -> None:
    body = {"text": "the fox"} | ({"max_tokens": most} if most else {})
    found: Any = site.app.test_client().post(URL, json=body).json
    ids = seq2seq_ids("the fox")
    info = info_of(FakeOptions(encoder_decoder=SEQ2SEQ_INFO))
    answer = fake_inspection.answer(Seq2Seq(ids, most or SEQ2SEQ_INFO.max_written), info)
    piece, written = SEQ2SEQ_TEXTS.tokenizer.piece, answer["written"].tolist()
    assert [(token["id"], token["piece"]) for token in found["tokens"]] == [
        (id, piece(id)) for id in ids
    ]
    assert found["start"] == {"id": SEQ2SEQ_INFO.start_id, "piece": piece(SEQ2SEQ_INFO.start_id)}
    assert [(token["id"], token["piece"]) for token in found["written"]] == [
        (id, piece(id)) for id in written
    ]
    for key, name in (("probability", "probabilities"), ("ms", "step_ms")):
        assert [token[key] for token in found["written"]] == pytest.approx(answer[name].tolist())
    assert found["text"] == SEQ2SEQ_TEXTS.tokenizer.decode(written)
    for name in ("encoder", "decoder"):
        np.testing.assert_allclose(found[name], answer[name].mean(axis=1), atol=1e-6)
    np.testing.assert_allclose(found["cross"], answer["cross"], atol=1e-6)
    n_cross = (SEQ2SEQ_INFO.n_decoder_layers, SEQ2SEQ_INFO.n_heads, len(written), len(ids))
    assert np.shape(found["cross"]) == n_cross
    assert (found["model"], found["ended"]) == (SEQ2SEQ_INFO.name, True)
    assert (found["encode_ms"], found["ms"] >= 0) == (12.5, True)


def test_the_engine_forgets_who_asked(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each request it would keep a number, and a client that leaves would keep its place."""
    forgotten: list[int] = []
    monkeypatch.setattr(site.engine, "cancel_questions", forgotten.append)
    site.app.test_client().post(URL, json={"text": "the fox"})
    assert len(forgotten) == 1


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"text": ""}, "expected a text of 1 to 2,000 characters, but got 0"),
        ({"text": "a" * 2001}, "but got 2,001"),
        ({"text": "the fox " * 40}, "tokens, and the encoder reads at most 16; shorten it"),
        ({"text": "a", "max_tokens": 0}, "Expected `int` >= 1"),
        ({"texts": "a"}, "unknown field `texts`"),
        ({"text": 5}, "Expected `str`, got `int`"),
        ([], "Expected `object`"),
    ],
)
def test_bad_requests_are_refused(site: Site, body: Any, words: str) -> None:
    response = site.app.test_client().post(URL, json=body)
    assert response.status_code == 400
    assert words in response.text


def test_without_an_encoder_decoder_it_says_so(start_site: StartSite) -> None:
    response = start_site().app.test_client().post(URL, json={"text": "a"})
    assert response.status_code == 400
    assert "start the server with --encoder-decoder-model" in response.text
