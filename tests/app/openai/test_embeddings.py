"""/v1/embeddings, with the official client and with requests that it would not send."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import openai
import pytest
from flask.testing import FlaskClient

from app.engine_client import LocalEngine
from app.http.errors import ClientGoneError
from app.http.questions import MAX_ASKED, ask_in_turn
from app.openai.inputs import MAX_INPUTS
from gpu import QueueFull
from gpu.inspection.requests import Answer, Embedding, Question
from tests.app.conftest import Site, StartSite
from tests.app.fake_inspection import fake_vector
from tests.app.fake_options import FakeOptions, info_of
from tests.app.fake_tokenizer import FakeTokenizer

MODEL = "fake-story"
TEXTS = ["Once upon a time", "there was a fox", "Once"]
INFO = info_of(FakeOptions())
SIZE = INFO.model.hidden_size


@pytest.fixture
def site(start_site: StartSite) -> Site:
    return start_site(loras=("pirate",))


@pytest.fixture
def client(site: Site) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{site.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def expected(text: str, pooling: str = "last", dimensions: int = SIZE) -> list[float]:
    """Return the engine's vector, cut and of length 1."""
    vector = fake_vector(FakeTokenizer().encode(text), pooling, INFO).astype("f4").astype("f8")
    kept = vector[:dimensions]
    return (kept / np.linalg.norm(kept)).astype("f4").tolist()


def test_both_encodings_are_the_same_vectors_of_length_one(client: openai.OpenAI) -> None:
    as_floats = client.embeddings.create(model=MODEL, input=TEXTS, encoding_format="float")
    as_base64 = client.embeddings.create(model=MODEL, input=TEXTS)  # the client's own default
    assert [entry.embedding for entry in as_floats.data] == [expected(text) for text in TEXTS]
    assert [entry.embedding for entry in as_base64.data] == [expected(text) for text in TEXTS]
    assert [entry.index for entry in as_floats.data] == [0, 1, 2]
    n_tokens = sum(len(FakeTokenizer().encode(text)) for text in TEXTS)
    assert as_floats.usage.prompt_tokens == as_floats.usage.total_tokens == n_tokens
    assert as_floats.model == MODEL
    for entry in as_floats.data:
        assert np.linalg.norm(entry.embedding) == pytest.approx(1)


def test_texts_and_their_ids_have_the_same_vectors(client: openai.OpenAI) -> None:
    ids = [FakeTokenizer().encode(text) for text in TEXTS]
    for given in (TEXTS[0], ids[0], [TEXTS[0]], [ids[0]]):
        answer = client.embeddings.create(model=MODEL, input=given)
        assert [entry.embedding for entry in answer.data] == [expected(TEXTS[0])]
    assert len(client.embeddings.create(model=MODEL, input=ids).data) == len(ids)


def test_dimensions_cut_the_vector_and_scale_it_again(client: openai.OpenAI) -> None:
    answer = client.embeddings.create(model=MODEL, input=TEXTS[0], dimensions=5)
    assert answer.data[0].embedding == expected(TEXTS[0], dimensions=5)


def test_a_request_chooses_the_pooling(client: openai.OpenAI) -> None:
    answer = client.embeddings.create(model=MODEL, input=TEXTS[0], extra_body={"pooling": "mean"})
    assert answer.data[0].embedding == expected(TEXTS[0], "mean") != expected(TEXTS[0])


TOO_LONG = [1] * (INFO.limits.context + 3)
BAD: dict[str, tuple[dict[str, Any], str | None]] = {
    "no input": ({}, "input"),
    "null": ({"input": None}, "input"),
    "no texts": ({"input": []}, "input"),
    "texts and ids": ({"input": ["a", 1]}, "input"),
    "texts and lists": ({"input": ["a", [1]]}, "input"),
    "an empty list of ids": ({"input": [[1], []]}, "input[1]"),
    "a boolean": ({"input": [True]}, "input[0]"),
    "an unknown id": ({"input": [[1], [1, 10**6]]}, "input[1][1]"),
    "a negative id": ({"input": [-1]}, "input[0]"),
    "too many texts": ({"input": ["a"] * (MAX_INPUTS + 1)}, "input"),
    "too long": ({"input": [[1], TOO_LONG]}, "input[1]"),
    "another encoding": ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
    "no dimensions": ({"input": "a", "dimensions": 0}, "dimensions"),
    "too many dimensions": ({"input": "a", "dimensions": SIZE + 1}, "dimensions"),
    "another pooling": ({"input": "a", "pooling": "cls"}, "pooling"),
    "another field": ({"input": "a", "truncate": True}, "truncate"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_by_name(http: FlaskClient, name: str) -> None:
    body, param = BAD[name]
    response = http.post("/v1/embeddings", json=body)
    assert response.status_code == 400, response.text
    assert response.json is not None
    assert response.json["error"]["param"] == param


def test_a_text_longer_than_the_context_is_refused_with_the_numbers(http: FlaskClient) -> None:
    response = http.post("/v1/embeddings", json={"input": [[1], [1] * 515]})
    assert response.status_code == 400
    assert response.json is not None
    error = response.json["error"]
    assert error["code"] == "context_length_exceeded"
    assert error["param"] == "input[1]"
    assert "has 515 tokens, but the context holds 512; shorten it by at least 3" in error["message"]
    assert http.post("/v1/embeddings", json={"input": [1] * 512}).status_code == 200


def test_an_adapter_is_a_model(site: Site, client: openai.OpenAI) -> None:
    questions: list[Question] = []
    assert isinstance(site.engine, LocalEngine)
    inspect = site.engine.inspect

    def watched(question: Question, asker: int = 0) -> Future[Answer]:
        questions.append(question)
        return inspect(question, asker)

    site.engine.inspect = watched  # type: ignore[method-assign]
    assert client.embeddings.create(model="pirate", input="Once").model == "pirate"
    (question,) = questions
    assert isinstance(question, Embedding)
    (lora,) = question.spans[0].interventions.loras
    assert (question.spans[0].first, lora.name, lora.strength) == (0, "pirate", 1.0)
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="text-embedding-3-small", input="Once")


def test_embeddings_take_a_place_of_their_client(start_site: StartSite) -> None:
    site = start_site(n_slots=1, queue=0)
    site.page().hold_slot("a")
    with (
        openai.OpenAI(base_url=f"{site.url}/v1", api_key="none", max_retries=0) as client,
        pytest.raises(openai.RateLimitError) as caught,
    ):
        client.embeddings.create(model=MODEL, input="Once")
    assert caught.value.response.headers["Retry-After"]


class Unanswered:
    """Engine that answers no question until told; it records who asks and who is cancelled."""

    def __init__(self) -> None:
        self.asked: list[tuple[Embedding, int, Future[Answer]]] = []
        self.cancelled: list[int] = []

    def inspect(self, question: Embedding, asker: int) -> Future[Answer]:
        self.asked.append((question, asker, Future()))
        return self.asked[-1][2]

    def cancel_questions(self, asker: int) -> None:
        self.cancelled.append(asker)


QUESTIONS = [Embedding([i]) for i in range(5)]


def test_few_questions_of_a_request_are_under_way() -> None:
    engine, n_answered = Unanswered(), 0

    def answer_oldest() -> bool:
        nonlocal n_answered
        assert len(engine.asked) - n_answered <= MAX_ASKED
        engine.asked[n_answered][2].set_result(Answer({"i": n_answered}, ()))
        n_answered += 1
        return False

    answers = ask_in_turn(engine, QUESTIONS, answer_oldest)  # type: ignore[arg-type]
    assert [answer.info["i"] for answer in answers] == list(range(len(QUESTIONS)))
    assert engine.cancelled == [engine.asked[0][1]], "the engine forgets who asked"


def test_a_client_that_leaves_takes_its_questions_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.http.questions.POLL_SECONDS", 0.01)
    engine = Unanswered()
    with pytest.raises(ClientGoneError):
        next(ask_in_turn(engine, QUESTIONS, lambda: True))  # type: ignore[arg-type]
    assert len(engine.asked) == MAX_ASKED
    assert engine.cancelled == [engine.asked[0][1]]


def test_a_question_that_fails_ends_the_others() -> None:
    engine = Unanswered()
    original = engine.inspect

    def failing(question: Embedding, asker: int) -> Future[Answer]:
        future = original(question, asker)
        if question.ids == [2]:
            future.set_exception(QueueFull("no KV cache is free"))
        else:
            future.set_result(Answer({}, ()))
        return future

    engine.inspect = failing  # type: ignore[method-assign]
    with pytest.raises(QueueFull):
        list(ask_in_turn(engine, QUESTIONS, lambda: False))  # type: ignore[arg-type]
    assert [question.ids for question, _, _ in engine.asked] == [[0], [1], [2], [3]]
    assert engine.cancelled
