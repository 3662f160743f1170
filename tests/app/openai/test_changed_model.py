"""A request that was read with the tokenizer of one model is not run by another."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from app.models.encoders import Encoders
from app.openai import chat_completions, completions, embeddings, responses_route
from app.ws import page_connection
from tests.app import fake_encoder
from tests.app.conftest import Site, StartSite
from tests.app.fake_encoder import INFO
from tests.app.fake_tokenizer import CHAT_TEMPLATE, FakeTokenizer

MESSAGES = [{"role": "user", "content": "Once"}]
CHANGED = "the model was changed meanwhile; send the request again"


def changing(change: Callable[[], object]) -> Callable[..., Any]:
    """Return a `turn_to_read` in whose turn the model is changed."""

    @contextlib.contextmanager
    def turn_to_read(engine: object) -> Iterator[None]:
        yield
        change()

    return turn_to_read


@pytest.fixture
def site(start_site: StartSite) -> Site:
    return start_site()


@pytest.mark.parametrize(
    ("module", "route", "body"),
    [
        (completions, "/v1/completions", {"prompt": "Once"}),
        (completions, "/v1/completions", {"prompt": "Once", "echo": True, "logprobs": 1}),
        (chat_completions, "/v1/chat/completions", {"messages": MESSAGES}),
        (responses_route, "/v1/responses", {"input": "Once"}),
        (embeddings, "/v1/embeddings", {"input": "Once"}),
    ],
)
def test_a_text_that_another_model_was_to_read_is_refused(
    site: Site, monkeypatch: pytest.MonkeyPatch, module: Any, route: str, body: Any
) -> None:
    def change() -> None:
        site.engine.tokenizer = FakeTokenizer(CHAT_TEMPLATE)

    http = site.app.test_client()
    with monkeypatch.context() as patch:
        patch.setattr(module, "turn_to_read", changing(change))
        answer = http.post(route, json=body)
    assert (answer.status_code, (answer.json or {})["error"]["message"]) == (503, CHANGED)
    assert http.post(route, json=body).status_code == 200


def test_a_page_is_told_so(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt_ids = page_connection.prompt_ids

    def encode_and_change(*args: Any, **options: Any) -> list[int]:
        ids = prompt_ids(*args, **options)
        site.engine.tokenizer = FakeTokenizer(CHAT_TEMPLATE)
        return ids

    page = site.page()
    with monkeypatch.context() as patch:
        patch.setattr(page_connection, "prompt_ids", encode_and_change)
        page.send_message("generate", id="a", prompt="Once")
        assert page.until("error", id="a")["message"] == CHANGED
    page.send_message("generate", id="a", prompt="Once", params={"max_tokens": 2})
    page.until("done", id="a")


def test_vectors_are_those_of_the_embedding_model_that_read_the_text(
    start_site: StartSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoders = Encoders()
    site = start_site(embedding=INFO, encoder_texts=fake_encoder.TEXTS, encoders=encoders)
    change = changing(lambda: setattr(encoders.inputs, "embedding", None))
    monkeypatch.setattr(embeddings, "turn_to_read", change)
    answer = site.app.test_client().post("/v1/embeddings", json={"input": "a"})
    assert answer.status_code == 503
    assert "the embedding model was changed meanwhile" in answer.text
