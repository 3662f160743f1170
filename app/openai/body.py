"""Bodies of the API's requests: JSON decoded as a struct, with errors that name the field."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, TypeVar

import flask
import msgspec
from msgspec import inspect

from gpu import InvalidRequest

Body = TypeVar("Body", bound=msgspec.Struct)


def decode_body(kind: type[Body]) -> Body:
    """Decode the JSON body of this request as `kind`. A field that is null and has a default counts
    as left out: many clients send one for every option that is not set. Raises InvalidRequest
    naming the field."""
    body = flask.request.get_data()
    try:
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.ValidationError:
            if b"null" not in body:
                raise
            given = without_nulls(msgspec.json.decode(body), _type_info(kind))
            return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise _refusal(error) from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"expected a JSON object as the body: {error}") from None


def convert(value: Any, kind: type[Body], path: str) -> Body:
    """Return a part of a body as `kind`. Raises InvalidRequest naming the field, which begins with
    `path`, the place of the part."""
    try:
        return msgspec.convert(without_nulls(value, _type_info(kind)), kind)
    except msgspec.ValidationError as error:
        refusal = _refusal(error)
        raise InvalidRequest(str(refusal), f"{path}.{refusal.param}".rstrip(".")) from None


def without_nulls(value: Any, kind: inspect.Type) -> Any:
    """Return a JSON value of the type `kind` without the nulls of fields that have a default.
    What is not a struct, such as a JSON schema, keeps its own."""
    kinds = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    if isinstance(value, list):
        items = [one for one in kinds if isinstance(one, inspect.ListType)]
        return [without_nulls(item, items[0].item_type) for item in value] if items else value
    if not isinstance(value, dict):
        return value
    structs = [one for one in kinds if isinstance(one, inspect.StructType)]
    tagged = [one for one in structs if one.tag_field and value.get(one.tag_field) == one.tag]
    fields = {field.encode_name: field for one in (tagged or structs)[:1] for field in one.fields}
    return {
        name: without_nulls(item, fields[name].type) if name in fields else item
        for name, item in value.items()
        if item is not None or name not in fields or fields[name].required
    }


@cache
def _type_info(kind: type[msgspec.Struct]) -> inspect.Type:
    return inspect.type_info(kind)


def _refusal(error: msgspec.ValidationError) -> InvalidRequest:
    message, _, path = str(error).partition(" - at `$.")
    path = path.rstrip("`")
    field = re.search(r"(?:unknown|required) field `(\w+)`", message)
    if "unknown field" in message:
        message = f"{message}; remove it: unknown fields are refused rather than silently ignored"
    if field:
        path = f"{path}.{field[1]}" if path else field[1]
    return InvalidRequest(message, path)
