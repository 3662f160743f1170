"""`/openapi.json` against the OpenAPI standard, the routes and real answers."""

from __future__ import annotations

import re
from typing import Any

import jsonschema
import pytest
from flask.testing import FlaskClient
from openapi_spec_validator import OpenAPIV31SpecValidator

from app.openai.operations import OPERATIONS, Operation
from gpu import SAMPLING_SETTINGS
from tests.app.openai.requests import HELLO

OF_THE_PAGE = ("/", "/favicon.ico", "/static/", "/api/", "/ws")
"""Routes that programs have no use for."""

BODIES: dict[str, Any] = {
    "/v1/completions": {"prompt": "Once", "max_tokens": 3, "n": 2},
    "/v1/chat/completions": {"messages": HELLO, "max_tokens": 3, "logprobs": True},
    "/v1/responses": {"input": "Hi", "instructions": "Be brief.", "max_output_tokens": 3},
    "/v1/embeddings": {"input": ["Once", "upon"]},
    "/tokenize": {"prompt": "Once upon", "with_pieces": True},
    "/detokenize": {"tokens": [1, 2]},
    "/watermark": {"content": "Once upon a time"},
    "/apply-template": {"messages": HELLO},
}


@pytest.fixture
def document(http: FlaskClient) -> dict[str, Any]:
    made = http.get("/openapi.json").json
    assert made is not None
    return made


def test_it_is_an_openapi_document(document: dict[str, Any]) -> None:
    OpenAPIV31SpecValidator(document).validate()


def test_it_has_every_route_for_programs(http: FlaskClient, document: dict[str, Any]) -> None:
    routes = {
        (re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule), method.lower())
        for rule in http.application.url_map.iter_rules()
        if rule.rule != "/" and not rule.rule.startswith(OF_THE_PAGE[1:])
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }
    described = {(path, method) for path, item in document["paths"].items() for method in item}
    assert described == routes


def test_sampling_settings_have_their_range(document: dict[str, Any]) -> None:
    properties = document["components"]["schemas"]["ChatRequest"]["properties"]
    for setting in SAMPLING_SETTINGS:
        if setting.name != "first_index":
            declared = properties[setting.name]
            minimum, maximum = setting.declared.range
            smallest = {"top_k": -1, "seed": -(2**63), "max_tokens": -1}.get(setting.name, minimum)
            assert (declared["minimum"], declared["maximum"]) == (smallest, maximum)


WHILE_WRITTEN = "/v1/generations/{id}/params"
"""Its answer is checked in test_choices.py, where an answer is being written."""


@pytest.mark.parametrize(
    "operation",
    [operation for operation in OPERATIONS if operation.path != WHILE_WRITTEN],
    ids=lambda operation: operation.path,
)
def test_answers_are_as_described(http: FlaskClient, operation: Operation) -> None:
    path = operation.path.replace("{name}", "fake-story")
    response = http.open(path, method=operation.method.upper(), json=BODIES.get(path))
    assert response.status_code == 200, response.text
    if operation.answer is not None:
        jsonschema.validate(response.json, operation.answer)


@pytest.mark.parametrize("path", BODIES)
def test_bodies_are_as_described(document: dict[str, Any], path: str) -> None:
    described = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    schema = {**described["schema"], "components": document["components"]}
    jsonschema.validate(BODIES[path], schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**BODIES[path], "temprature": 1}, schema)
