"""`/openapi.json`: the HTTP API as an OpenAPI 3.1 document.

Bodies of requests are described by the structs that decode them. Sampling settings get the range
and the help of their declaration.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
from flask import Flask, Response, jsonify

from app.openai.operations import ERROR, OPERATIONS, Operation, Schema
from app.openai.schema import SMALLEST_GIVEN
from gpu import SAMPLING_SETTINGS

REF = "#/components/schemas/"
ABOUT = {"default", "description"}
"""Keywords that tell about a field and restrict nothing."""
ERRORS = {
    400: "a field is wrong; `param` names it",
    401: "the server has a token, and the request has another or none",
    403: "the request comes from another web page, or names another host",
    404: "there is no such model, adapter or answer",
    413: "the body is too large",
    429: "the queue is full; `Retry-After` says when to try again",
    503: "no model is ready; `Retry-After` says when to try again",
}


def register(app: Flask, version: str) -> None:
    """Add the route."""
    made = document(version)

    @app.get("/openapi.json")
    def openapi() -> Response:
        return jsonify(made)


def document(version: str) -> dict[str, Any]:
    """Return the document for this version of the server."""
    bodies = [operation.body for operation in OPERATIONS if operation.body is not None]
    references, schemas = msgspec.json.schema_components(bodies, ref_template=REF + "{name}")
    of_body: dict[Any, Schema] = dict(zip(bodies, references, strict=True))
    for schema in schemas.values():
        _describe_settings(schema.get("properties", {}))
        _allow_nulls(schema)
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        described = _described(operation, of_body.get(operation.body))
        paths.setdefault(operation.path, {})[operation.method] = described
    return {
        "openapi": "3.1.0",
        "info": {"title": "Tokenglass", "version": version},
        "paths": paths,
        "components": {
            "schemas": {**schemas, "Error": ERROR},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _described(operation: Operation, body: Schema | None) -> dict[str, Any]:
    """Return the operation object; `body` is the schema of the request's body."""
    if operation.answer is None:
        content: dict[str, Any] = {"text/plain": {}}
    else:
        content = {"application/json": {"schema": operation.answer}}
    if operation.streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    responses: dict[str, Any] = {"200": {"description": operation.summary, "content": content}}
    error = {"application/json": {"schema": {"$ref": REF + "Error"}}}
    for status in (*operation.errors, 401, 403):
        responses[str(status)] = {"description": ERRORS[status], "content": error}
    described: dict[str, Any] = {"summary": operation.summary, "responses": responses}
    names = re.findall(r"{(\w+)}", operation.path)
    if names:
        described["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in names
        ]
    if body is not None:
        described["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": body}},
        }
    return described


def _describe_settings(properties: dict[str, Schema]) -> None:
    """Give the sampling settings among these properties their range and help."""
    for setting in SAMPLING_SETTINGS:
        if setting.name in properties:
            minimum, maximum = setting.declared.range
            properties[setting.name] |= {
                "minimum": SMALLEST_GIVEN.get(setting.name, minimum),
                "maximum": maximum,
                "description": setting.declared.help,
            }


def _allow_nulls(schema: Schema) -> None:
    """Let null stand for every field that may be left out, as `app.openai.body` reads them."""
    properties, null = schema.get("properties", {}), {"type": "null"}
    for name, declared in properties.items():
        optional = name not in schema.get("required", [])
        if optional and declared.keys() - ABOUT and null not in declared.get("anyOf", ()):
            about = {key: declared.pop(key) for key in ABOUT if key in declared}
            properties[name] = {"anyOf": [declared, null], **about}
