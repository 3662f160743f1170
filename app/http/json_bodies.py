"""JSON bodies of the routes under `/api`: those of requests read, those of answers made."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from flask import Response, request

from gpu import InvalidRequest

T = TypeVar("T")


def read_body(kind: type[T], example: str, param: str) -> T:
    """Return the body of the request. It must be application/json, which a form on another site
    cannot send. Raises InvalidRequest, which names `param` and shows `example`."""
    if request.mimetype != "application/json":
        raise InvalidRequest(
            f"expected Content-Type application/json and a body such as {example}, but got "
            f"{request.mimetype or 'no Content-Type'}",
            param,
        )
    try:
        return msgspec.json.decode(request.get_data(), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(
            f"invalid body: {error}; expected one such as {example}", param
        ) from error


def answer(body: Any, status: int = 200) -> Response:
    """Return a JSON answer that no cache keeps."""
    response = Response(msgspec.json.encode(body), status, mimetype="application/json")
    response.headers["Cache-Control"] = "no-store"
    return response
