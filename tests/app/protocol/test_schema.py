"""The schema that other engines and clients are held to is that of the server: what it sends fits,
and what it refuses does not."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import msgspec
import pytest

from app import assets
from app.protocol.messages import FromPage, Hello
from app.protocol.schema import protocol_schema, schema_text
from tests.app.conftest import Site, StartSite

FILE = "js/net/protocol-schema.json"


@pytest.fixture(scope="module")
def schemas() -> dict[str, Any]:
    return protocol_schema()


def fits(message: Any, schema: dict[str, Any]) -> bool:
    return bool(jsonschema.Draft202012Validator(schema).is_valid(message))


@pytest.mark.smoke
def test_the_file_is_up_to_date() -> None:
    """If it is not: python -m app.protocol.schema > static/js/net/protocol-schema.json"""
    assert (assets("static") / FILE).read_text("utf-8") == schema_text()


def test_they_are_schemas(schemas: dict[str, Any]) -> None:
    for direction in ("from_page", "to_page"):
        jsonschema.Draft202012Validator.check_schema(schemas[direction])


def test_everything_that_a_page_gets_fits(start_site: StartSite, schemas: dict[str, Any]) -> None:
    page = start_site(delay=0.01).page()
    page.send_message("generate", id="a", prompt="Once", params={"max_tokens": 5})
    page.until("done")
    page.send_message("generate", id="b", messages=[{"role": "user", "content": "Hi"}])
    page.until("token", index=3)
    page.send_message("update", id="b", params={"temperature": 0.5})
    page.until("updated")
    page.send_message("stop", id="b")
    page.until("done", id="b")
    page.send_message("count", request=1, prompt="Once upon")
    page.until("counted")
    page.send_message("tokenize", request=2, text="Once upon")
    page.until("tokenized")
    page.send_message("segment", request=3, text="Once upon")
    page.until("segmented")
    page.send_message("generate", id="?", prompt="")
    page.until("error")
    kinds = {message.get("event", message)["type"] for message in page.messages}
    assert kinds >= {
        "hello", "status", "accepted", "prefill", "token", "updated", "done", "counted",
        "tokenized", "segmented", "error",
    }  # fmt: skip
    for message in page.messages:
        jsonschema.validate(message, schemas["to_page"])


def test_a_message_to_the_page_needs_all_of_its_fields(site: Site, schemas: dict[str, Any]) -> None:
    hello = site.page().messages[0]
    assert fits(hello, schemas["to_page"])
    for name in msgspec.structs.fields(Hello):
        assert not fits({k: v for k, v in hello.items() if k != name.name}, schemas["to_page"])
    assert not fits(hello | {"dispatches_per_token": "many"}, schemas["to_page"])


@pytest.mark.parametrize(
    "message",
    [
        {"type": "generate", "id": "a", "prompt": "Once"},
        {"type": "generate", "id": "a", "params": {"seed": 2**64 - 1, "top_k": 3}},
        {"type": "update", "id": "a", "reach": {"heads": [{"layer": 0, "head": 1, "factor": 0}]}},
        {"type": "stop", "id": "a"},
        {"type": "stop"},
        {"type": "generate", "id": 3},
        {"type": "generate", "id": "a", "unknown": 1},
        {"type": "update", "id": "a", "params": {"temperature": "hot"}},
        {"type": "hello"},
        {},
        [],
    ],
    ids=str,
)
def test_both_take_and_refuse_the_same(message: Any, schemas: dict[str, Any]) -> None:
    try:
        msgspec.json.decode(json.dumps(message), type=FromPage)
        taken = True
    except msgspec.ValidationError:
        taken = False
    assert fits(message, schemas["from_page"]) is taken
