"""The messages as JSON schemas, for whoever speaks them in another language: the engine in the
browser, and other clients of the WebSocket.

python -m app.protocol.schema > static/js/net/protocol-schema.json
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from app.protocol.messages import VERSION, FromPage, ToPage
from app.protocol.replay_format import Schema, object_types, with_null


def protocol_schema() -> Schema:
    """Return two JSON schemas (draft 2020-12), `from_page` and `to_page`: what the text messages in
    each direction may be. Messages to the page have all of their fields; measurements that are not
    a number are null."""
    to_page = msgspec.json.schema(ToPage)
    for owner in object_types(ToPage):
        _require_all(to_page["$defs"][owner.__name__], owner)
    return {"version": VERSION, "from_page": msgspec.json.schema(FromPage), "to_page": to_page}


def _require_all(definition: Schema, owner: Any) -> None:
    """Demand the fields that are always sent, and allow null where a measurement may be none."""
    properties = definition["properties"]
    config = getattr(owner, "__struct_config__", None)  # dataclasses have none
    if config is None or not config.omit_defaults:
        always = set(definition["required"])  # a field without a default may be unset
        always |= {name for name, value in properties.items() if "default" in value}
        definition["required"] = [name for name in properties if name in always]
    for field, value in properties.items():
        properties[field] = with_null(value, owner.__name__, field)


def schema_text() -> str:
    """Return the schemas as a file."""
    return json.dumps(protocol_schema(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(schema_text(), end="")
