"""Options that clients send although they are unset: null, and −1 where there is no null."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jsonschema
import msgspec
import pytest
from flask.testing import FlaskClient
from openai.resources import Completions, Embeddings
from openai.resources.chat import Completions as ChatCompletions
from openai.resources.responses import Responses

from app.openai.embeddings import EmbeddingRequest
from app.openai.operations import OPERATIONS
from app.openai.responses_request import ResponsesRequest
from app.openai.schema import ChatRequest, CompletionRequest
from tests.app.openai.requests import HELLO, chat, complete

BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "Once", "max_tokens": 1},
    "/v1/chat/completions": {"messages": HELLO, "max_tokens": 1},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 1},
    "/v1/embeddings": {"input": "Once"},
    "/tokenize": {"prompt": "Once"},
    "/detokenize": {"tokens": [1]},
    "/apply-template": {"messages": HELLO},
}
OPTIONS = [
    (operation.path, field.name)
    for operation in OPERATIONS
    if operation.path in BODIES and operation.body is not None
    for field in msgspec.structs.fields(operation.body)
    if not field.required and field.name not in BODIES[operation.path]
]
OF_THE_CLIENT = {
    CompletionRequest: Completions.create,
    ChatRequest: ChatCompletions.create,
    ResponsesRequest: Responses.create,
    EmbeddingRequest: Embeddings.create,
}
OF_THE_CONNECTION = {"self", "extra_headers", "extra_query", "extra_body", "timeout"}


def test_null_is_the_same_as_leaving_an_option_out(http: FlaskClient) -> None:
    refused = [
        f"{path} {name}"
        for path, name in OPTIONS
        if http.post(path, json={**BODIES[path], name: None}).status_code != 200
    ]
    assert len(OPTIONS) > 100
    assert refused == []


def test_nulls_are_as_the_document_says(http: FlaskClient) -> None:
    document = http.get("/openapi.json").json
    assert document is not None
    for path, name in OPTIONS:
        described = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        schema = {**described["schema"], "components": document["components"]}
        jsonschema.validate({**BODIES[path], name: None}, schema)


@pytest.mark.parametrize("kind", OF_THE_CLIENT, ids=lambda kind: kind.__name__)
def test_every_option_of_the_official_client_is_known(kind: type[msgspec.Struct]) -> None:
    create: Callable[..., Any] = OF_THE_CLIENT[kind]
    options = inspect.signature(create).parameters.keys() - OF_THE_CONNECTION
    assert options <= set(kind.__struct_fields__)


def test_a_null_deeper_in_a_request_is_left_out_too(http: FlaskClient) -> None:
    body = {"messages": HELLO, "max_tokens": 1, "stream": True}
    body["stream_options"] = {"include_usage": None, "include_obfuscation": None}
    response = http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    call = {"id": "a", "type": None, "index": None, "function": {"name": "f", "arguments": "{}"}}
    message = {
        "role": "assistant",
        "tool_calls": [call],
        "content": [{"type": "text", "text": "a"}],
    }
    wrong = http.post(
        "/v1/chat/completions", json={"messages": [message], "stream": None, "n": "two"}
    ).json
    assert wrong is not None
    assert wrong["error"]["param"] == "n", "the call passed, as null is no wrong type of one"
    item = {"role": "user", "content": "Hi", "type": None, "status": None}
    assert http.post("/v1/responses", json={"input": [item]}).status_code == 200


def test_a_null_inside_of_a_schema_stays(http: FlaskClient) -> None:
    schema = {"enum": [None], "default": None, "not": None}
    body = {"prompt": "a", "stream": None, "json_schema": schema}
    refused = http.post("/v1/completions", json=body).json
    assert refused is not None
    assert "not" in refused["error"]["message"], "a keyword of the schema is not one of the request"


@pytest.mark.parametrize("value", ["false", 1, [], {}])
def test_other_types_are_still_refused(http: FlaskClient, value: Any) -> None:
    for more in ({}, {"echo": None}):
        response = http.post("/v1/completions", json={"prompt": "a", "stream": value, **more})
        assert (response.status_code, response.json and response.json["error"]["param"]) == (
            400,
            "stream",
        )


def test_what_is_required_cannot_be_null(http: FlaskClient) -> None:
    response = http.post("/v1/completions", json={"prompt": None, "stream": None})
    assert response.json is not None
    assert response.json["error"]["param"] == "prompt"


HOT = {"temperature": 3.0, "max_tokens": 20, "top_p": 1}


def test_minus_one_as_top_k_keeps_all_tokens(http: FlaskClient) -> None:
    answers = [complete(http, **HOT, seed=3, top_k=k)["choices"] for k in (-1, 0)]
    assert answers[0] == answers[1]
    assert (
        chat(http, **HOT, seed=3, top_k=-1)["choices"]
        == (chat(http, **HOT, seed=3, top_k=0)["choices"])
    )


def test_minus_one_as_a_seed_is_a_random_one(http: FlaskClient) -> None:
    drawn = complete(http, **HOT, seed=-1)["seed"]
    assert drawn == complete(http, **HOT)["seed"], "the fake engine draws the same one each time"
    assert drawn != 2**64 - 1


@pytest.mark.ci
def test_minus_one_as_max_tokens_is_no_limit(http: FlaskClient) -> None:
    limited = complete(http, temperature=0)["choices"][0]
    free = complete(http, temperature=0, max_tokens=-1)["choices"][0]
    assert free["text"].startswith(limited["text"])
    assert len(free["text"]) > len(limited["text"])
    for name in ("max_tokens", "max_completion_tokens"):
        free = chat(http, temperature=0, **{name: -1})
        assert free["choices"] == chat(http, temperature=0)["choices"]
        response = http.post("/v1/chat/completions", json={"messages": HELLO, name: -2})
        assert response.status_code == 400


@pytest.mark.parametrize("seed", [-5, -(2**63)])
def test_a_negative_seed_repeats_its_text(http: FlaskClient, seed: int) -> None:
    first, again = (complete(http, **HOT, seed=seed) for _ in range(2))
    assert first["choices"] == again["choices"]
    assert first["seed"] == seed + 2**64
    assert complete(http, **HOT, seed=first["seed"])["choices"] == first["choices"]
