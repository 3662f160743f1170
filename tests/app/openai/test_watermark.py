"""`/watermark` finds what `watermark_bias` wrote, and refuses in words what it cannot read."""

from __future__ import annotations

from typing import Any

import pytest
from flask.testing import FlaskClient

from app.openai import long_requests
from app.openai.watermark import MAX_TOKENS, WatermarkRequest
from gpu import Greenlists, InvalidRequest, WatermarkConfig, detect_watermark
from tests.app.fake_tokenizer import FakeTokenizer
from tests.app.openai.test_text_routes import post

TEXT = "Once upon a time there was a fox who lived in the wood and was quick"


def test_the_numbers_are_those_of_the_detector(http: FlaskClient) -> None:
    settings = {"greenlist_ratio": 0.5, "hashing_key": 7, "seeding_scheme": "selfhash"}
    answer = post(http, "/watermark", content=TEXT, window=4, **settings)
    tokenizer = FakeTokenizer()
    ids = tokenizer.encode(TEXT, bos=False)
    vocab_size = post_info(http)["vocab_size"]
    config = WatermarkConfig(0.5, 7, "selfhash")
    want = detect_watermark(ids, config, Greenlists(vocab_size), window=4)
    tokens = answer.pop("tokens")
    assert [token["id"] for token in tokens] == ids
    assert "".join(token["piece"] for token in tokens).strip() == TEXT
    assert tuple(token["green"] for token in tokens) == want.green
    assert tuple(token["window_z"] for token in tokens) == want.window_z
    assert answer == {name: getattr(want, name) for name in answer}
    assert len(answer) == 7


def test_a_text_that_was_written_with_a_watermark_is_found(http: FlaskClient) -> None:
    asked = {"prompt": TEXT, "max_tokens": 80, "seed": 3, "temperature": 2, "ignore_eos": True}
    z = []
    for bias in (0.0, 8.0):
        body = {**asked, "watermark_bias": bias, "return_token_ids": True}
        choice = post(http, "/v1/completions", **body)["choices"][0]
        z.append(post(http, "/watermark", tokens=choice["token_ids"])["z_score"])
    assert z[0] < 3 < z[1]


def post_info(http: FlaskClient) -> dict[str, Any]:
    info: dict[str, Any] | None = http.get("/tokenizer_info").json
    assert info is not None
    return info


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ({}, "exactly one of content and tokens"),
        ({"content": TEXT, "tokens": [1, 2]}, "exactly one of content and tokens"),
        ({"content": ""}, "2 are the fewest"),
        ({"tokens": [1, 10**6]}, "ids go from"),
        ({"tokens": [1] * (MAX_TOKENS + 1)}, "at most 8,192 are accepted"),
        ({"content": TEXT, "greenlist_ratio": 1.0}, "greenlist_ratio must be"),
        ({"content": TEXT, "hashing_key": 0}, "hashing_key must be"),
        ({"content": TEXT, "seeding_scheme": "righthash"}, "seeding_scheme"),
        ({"content": TEXT, "context_width": 0}, "context_width"),
        ({"content": TEXT, "window": 1}, "window"),
        ({"content": TEXT, "bias": 2.0}, "bias"),
    ],
)
def test_what_is_wrong_is_named(http: FlaskClient, body: dict[str, Any], what: str) -> None:
    answer = post(http, "/watermark", status=400, **body)
    error = answer["error"]
    assert what in f"{error['param']}: {error['message']}"


def test_a_large_vocabulary_has_shorter_texts() -> None:
    tokenizer = FakeTokenizer()
    most = 8192 * 49_152 // 262_144
    assert len(WatermarkRequest(tokens=[1] * most).ids(tokenizer, 262_144)) == most == 1536
    with pytest.raises(
        InvalidRequest, match="at most 1,536 are accepted with a vocabulary of 262,144"
    ):
        WatermarkRequest(tokens=[1] * (most + 1)).ids(tokenizer, 262_144)


def test_texts_are_searched_one_after_the_other(
    http: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_requests, "TURN_SECONDS", 0.0)
    with long_requests._turns:
        answer = post(http, "/watermark", status=429, content=TEXT)
    assert "too many long texts" in answer["error"]["message"]
    post(http, "/watermark", content=TEXT)
