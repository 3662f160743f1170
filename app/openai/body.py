"""Bodies of the API's requests: JSON decoded as a struct, with errors that name the field."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import flask
import msgspec

from gpu import InvalidRequest

Body = TypeVar("Body", bound=msgspec.Struct)


def decode_body(kind: type[Body]) -> Body:
    """Decode the JSON body of this request as `kind`. Raises InvalidRequest naming the field."""
    body = flask.request.get_data()
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise _refusal(error) from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"expected a JSON object as the body: {error}") from None


def convert(value: Any, kind: type[Body], path: str) -> Body:
    """Return a part of a body as `kind`. Raises InvalidRequest naming the field, which begins with
    `path`, the place of the part."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        refusal = _refusal(error)
        raise InvalidRequest(str(refusal), f"{path}.{refusal.param}".rstrip(".")) from None


def _refusal(error: msgspec.ValidationError) -> InvalidRequest:
    message, _, path = str(error).partition(" - at `$.")
    path = path.rstrip("`")
    field = re.search(r"(?:unknown|required) field `(\w+)`", message)
    if "unknown field" in message:
        message = f"{message}; remove it: unknown fields are refused rather than silently ignored"
    if field:
        path = f"{path}.{field[1]}" if path else field[1]
    return InvalidRequest(message, path)
