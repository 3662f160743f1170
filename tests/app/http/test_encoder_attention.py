"""/api/encoder-attention: attention in the embedding model, its tokens, and bad requests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpu.inspection.requests import EncoderAttention
from tests.app import fake_encoder, fake_inspection
from tests.app.conftest import Site, StartSite
from tests.app.fake_encoder import INFO, MOST, ids_of
from tests.app.fake_options import FakeOptions, info_of

URL = "/api/encoder-attention"


@pytest.fixture
def site(start_site: StartSite) -> Site:
    return start_site(embedding=INFO, encoder_texts=fake_encoder.TEXTS)


def test_it_has_the_mean_of_the_heads_in_every_layer(site: Site) -> None:
    for text in ("Once upon", "the fox " * 40):
        answer: Any = site.app.test_client().post(URL, json={"text": text}).json
        ids = ids_of(text)
        assert len(ids) <= MOST
        assert [token["id"] for token in answer["tokens"]] == ids
        assert answer["tokens"][1]["piece"] == fake_encoder.TEXTS.tokenizer.piece(ids[1])
        info = info_of(FakeOptions(embedding=INFO))
        weights = fake_inspection.answer(EncoderAttention(ids), info)["weights"]
        np.testing.assert_allclose(answer["weights"], weights.mean(axis=1), atol=1e-6)
        assert np.shape(answer["weights"]) == (INFO.n_layers, len(ids), len(ids))
        assert (answer["model"], answer["n_heads"]) == (INFO.name, weights.shape[1])
        assert answer["ms"] >= 0


def test_the_engine_forgets_who_asked(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each request it would keep a number, and a client that leaves would keep its place."""
    forgotten: list[int] = []
    monkeypatch.setattr(site.engine, "cancel_questions", forgotten.append)
    site.app.test_client().post(URL, json={"text": "Once upon"})
    assert len(forgotten) == 1


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"text": ""}, "expected a text of 1 to 2,000 characters, but got 0"),
        ({"text": "a" * 2001}, "but got 2,001"),
        ({"texts": "a"}, "unknown field `texts`"),
        ({"text": 5}, "Expected `str`, got `int`"),
        ([], "Expected `object`"),
    ],
)
def test_bad_requests_are_refused(site: Site, body: Any, words: str) -> None:
    response = site.app.test_client().post(URL, json=body)
    assert response.status_code == 400
    assert words in response.text


def test_without_an_embedding_model_it_says_so(start_site: StartSite) -> None:
    response = start_site().app.test_client().post(URL, json={"text": "a"})
    assert response.status_code == 400
    assert "start the server with --embedding-model" in response.text


def test_a_weight_too_small_to_be_told_is_not_one_that_the_mask_hides(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def weights(n: int, *_: Any) -> Any:
        found = np.full((INFO.n_layers, 2, n, n), 1e-9, np.float32)
        found[:, :, 0, 1] = 0
        return found

    monkeypatch.setattr(fake_inspection, "_encoder_weights", weights)
    answer: Any = site.app.test_client().post(URL, json={"text": "Once upon"}).json
    found = np.array(answer["weights"])
    assert (found[:, 0, 1] == 0).all()
    assert (np.sort(found.ravel())[INFO.n_layers :] == 1e-6).all()
