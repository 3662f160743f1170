"""/v1/embeddings with an embedding model beside the one that writes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest

from gpu.inspection.requests import MAX_ENCODED
from tests.app import fake_encoder
from tests.app.conftest import Site, StartSite
from tests.app.fake_encoder import INFO, MOST, ids_of
from tests.app.fake_inspection import fake_encoded
from tests.app.fake_options import FakeOptions, info_of

ENGINE = info_of(FakeOptions(embedding=INFO))
TEXTS = ["Once upon a time", "there was a fox", ""]


@pytest.fixture
def site(start_site: StartSite) -> Site:
    return start_site(embedding=INFO, encoder_texts=fake_encoder.TEXTS)


@pytest.fixture
def client(site: Site) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{site.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def expected(text: str) -> list[float]:
    return fake_encoded(ids_of(text), ENGINE).astype("f4").tolist()


@pytest.mark.parametrize("model", [INFO.name, None], ids=["named", "by default"])
def test_vectors_are_those_of_the_embedding_model(site: Site, model: str | None) -> None:
    body = {"input": TEXTS} | ({} if model is None else {"model": model})
    answer = site.app.test_client().post("/v1/embeddings", json=body).json
    assert answer is not None
    found = [entry["embedding"] for entry in answer["data"]]
    np.testing.assert_allclose(found, [expected(text) for text in TEXTS], atol=1e-7)
    assert answer["model"] == INFO.name
    n_tokens = sum(len(ids_of(text)) for text in TEXTS)
    assert answer["usage"] == {"prompt_tokens": n_tokens, "total_tokens": n_tokens}


def test_long_texts_are_cut_and_many_are_answered_in_order(client: openai.OpenAI) -> None:
    texts = [f"{'the fox ' * 20}{i}" if i % 2 else f"{i}" for i in range(MAX_ENCODED + 3)]
    answer = client.embeddings.create(model=INFO.name, input=texts)
    found = [entry.embedding for entry in answer.data]
    np.testing.assert_allclose(found, [expected(text) for text in texts], atol=1e-7)
    assert answer.usage.prompt_tokens == sum(len(ids_of(text)) for text in texts)
    assert max(len(ids_of(text)) for text in texts) == MOST


def test_ids_are_taken_as_they_are(client: openai.OpenAI) -> None:
    answer = client.embeddings.create(model=INFO.name, input=[ids_of(TEXTS[0]), [7]])
    np.testing.assert_allclose(answer.data[0].embedding, expected(TEXTS[0]), atol=1e-7)
    assert answer.usage.prompt_tokens == len(ids_of(TEXTS[0])) + 1


def test_a_prompt_is_put_in_front(client: openai.OpenAI) -> None:
    answer = client.embeddings.create(
        model=INFO.name, input="a fox", extra_body={"prompt_name": "query"}
    )
    np.testing.assert_allclose(answer.data[0].embedding, expected("find a fox"), atol=1e-7)


def test_dimensions_cut_the_vector(client: openai.OpenAI) -> None:
    answer = client.embeddings.create(model=INFO.name, input="a", dimensions=5)
    cut = np.array(expected("a")[:5])
    np.testing.assert_allclose(answer.data[0].embedding, cut / np.linalg.norm(cut), atol=1e-6)


def test_the_model_that_writes_still_answers_by_its_name(client: openai.OpenAI) -> None:
    answer = client.embeddings.create(
        model=ENGINE.model.name, input="a", extra_body={"pooling": "mean"}
    )
    assert len(answer.data[0].embedding) == ENGINE.model.hidden_size


def test_both_models_are_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [ENGINE.model.name, INFO.name]
    assert client.models.retrieve(INFO.name).id == INFO.name


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"pooling": "last"}, "pooling", "the pooling of little-encoder is mean"),
        ({"prompt_name": "title"}, "prompt_name", "there is no prompt 'title'; .* has: query"),
        ({"dimensions": 25}, "dimensions", "from 1 to 24"),
        ({"input": [[1] * 13]}, "input[0]", "has 13 tokens, but little-encoder takes 12"),
        ({"input": [[1], [400]]}, "input[1][0]", "ids go from 0 to 399"),
        ({"input": [[]]}, "input[0]", "has no tokens"),
        ({"model": "gpt"}, "model", "not 'gpt'"),
        ({"model": "fake-story", "prompt_name": "query"}, "prompt_name", "fake-story is not one"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_in_words(
    client: openai.OpenAI, body: dict[str, Any], param: str, words: str
) -> None:
    given = {"model": INFO.name, "input": "a", **body}
    with pytest.raises(openai.APIStatusError, match=words) as error:
        client.embeddings.with_raw_response.create(
            model=given.pop("model"), input=given.pop("input"), extra_body=given
        )
    assert error.value.body["param"] == param  # type: ignore[index]
