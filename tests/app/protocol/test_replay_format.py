"""The JSON schema of replay files fits the page's interpreter and the saved files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.protocol.replay_format import BOUNDS, CHARS, LENGTHS, SETTINGS_OF_VERSION_1, replay_schema

pytestmark = pytest.mark.smoke

SAVED = Path(__file__).parents[3] / "e2e" / "replay" / "saved"
KEYWORDS = {
    "$defs", "$ref", "anyOf", "default", "description", "discriminator", "enum", "items",
    "maxItems", "maxLength", "maximum", "minItems", "minimum", "pattern", "properties", "required",
    "type",
}  # fmt: skip
"""Keywords that static/js/replay/validate.js reads."""


def schemas(value: Any) -> Iterator[dict[str, Any]]:
    """Yield a schema and all schemas inside it."""
    yield value
    for inner in (*value.get("$defs", {}).values(), *value.get("properties", {}).values()):
        yield from schemas(inner)
    for inner in (*value.get("anyOf", ()), *filter(None, [value.get("items")])):
        yield from schemas(inner)


def test_the_page_reads_every_keyword() -> None:
    for schema in schemas(replay_schema()):
        assert set(schema) <= KEYWORDS, schema


@pytest.mark.parametrize("table", [BOUNDS, LENGTHS, CHARS])
def test_every_bound_belongs_to_an_existing_field(table: dict[str, Any]) -> None:
    fields = {
        f"{type}.{name}"
        for type, definition in replay_schema()["$defs"].items()
        for name in definition["properties"]
    }
    for name in table:
        assert name in fields or any(field.endswith(f".{name}") for field in fields), name


def test_a_setting_that_old_files_lack_has_a_default() -> None:
    settings = replay_schema()["$defs"]["FileSettings"]
    for name, schema in settings["properties"].items():
        if name in SETTINGS_OF_VERSION_1:
            assert name in settings["required"]
            assert "default" not in schema


@pytest.mark.parametrize("name", ["v1", "v2", "v3"])
def test_saved_files_have_only_fields_of_the_schema(name: str) -> None:
    schema = replay_schema()
    definitions = schema["$defs"]

    def check(value: Any, of: dict[str, Any], path: str) -> None:
        if "$ref" in of:
            return check(value, definitions[of["$ref"].split("/")[-1]], path)
        if "discriminator" in of:
            kind = of["discriminator"]
            return check(value, {"$ref": kind["mapping"][value[kind["propertyName"]]]}, path)
        if "anyOf" in of:
            if value is None:
                return None
            return check(value, of["anyOf"][0], path)
        if of.get("type") == "object":
            assert set(value) <= set(of["properties"]), path
            assert set(of["required"]) <= set(value), path
            for field, inner in value.items():
                check(inner, of["properties"][field], f"{path}.{field}")
        elif of.get("type") == "array":
            for i, inner in enumerate(value):
                check(inner, of["items"], f"{path}[{i}]")
        elif "enum" in of:
            assert value in of["enum"], path
        return None

    check(json.loads((SAVED / f"{name}.json").read_text()), schema, "replay")
