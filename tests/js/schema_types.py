"""TypeScript types generated for tsc: of messages, replay files, exported models and what routes
below /api answer, from their JSON schemas, and of the page's elements, from its templates.

python -m tests.js.schema_types > build/js/schemas.d.ts
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from html.parser import HTMLParser

import msgspec

from app import assets
from app.engine_client import ReplicaStatus
from app.http.encoder_attention import EncoderAttentionAnswer
from app.http.seq2seq import Seq2SeqAnswer
from app.http.sizing import SizingAnswer
from app.local.exports import DtypeOffers
from app.local.model_files import Manifest
from app.models.switching import ModelOffers
from app.protocol.replay_format import Schema, replay_schema
from app.protocol.schema import protocol_schema
from app.retrieval.messages import RetrievalOffer, SearchAnswer
from app.train.trainer import StepAnswer, TrainOffer
from gpu.checkpoint.inventory import Inventory
from gpu.checkpoint.tensor_summary import TensorSummary
from gpu.export.plan_format import PlanFile
from gpu.lora.change import LoraChange
from gpu.plans.plan_report import PlanReport

WORDS = {
    "integer": "number",
    "number": "number",
    "bigint": "bigint",
    "string": "string",
    "boolean": "boolean",
}


def type_of(schema: Schema) -> str:
    """Return the TypeScript type of a schema with the keywords that msgspec emits."""
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if "anyOf" in schema:
        return " | ".join(type_of(each) for each in schema["anyOf"])
    if "enum" in schema:
        return " | ".join(json.dumps(each) for each in schema["enum"])
    match schema.get("type"):
        case "null":
            return "null"
        case "array" if "prefixItems" in schema:
            return f"[{', '.join(type_of(each) for each in schema['prefixItems'])}]"
        case "array":
            return f"Array<{type_of(schema['items'])}>" if "items" in schema else "Array<unknown>"
        case "object" if "properties" in schema:
            return "{ " + "; ".join(fields_of(schema)) + " }"
        case "object":
            values = schema.get("additionalProperties")
            return f"Record<string, {type_of(values) if values else 'unknown'}>"
        case None:
            return "unknown"
        case word:
            return WORDS[word]


def fields_of(schema: Schema) -> Iterator[str]:
    """Yield the fields of an object; those that a message may lack are optional."""
    for name, field in schema["properties"].items():
        optional = "" if name in schema.get("required", ()) else "?"
        yield f"{json.dumps(name)}{optional}: {type_of(field)}"


def namespace(name: str, schema: Schema) -> str:
    """Return a namespace with a type for each definition of a schema, and its own as `Any`."""
    types = {"Any": {k: v for k, v in schema.items() if k != "$defs"}, **schema["$defs"]}
    lines = [f"  type {each} = {type_of(definition)};" for each, definition in types.items()]
    return "\n".join([f"declare namespace {name} {{", *lines, "}", ""])


def read_types(from_page: Schema) -> str:
    """Return the namespace Read: messages of the page as static/js/local/messages.js reads them,
    with their defaults, which are not read in turn, and with seeds of 64 bits."""
    schema = copy.deepcopy(from_page)
    types = schema["$defs"]
    for definition in types.values():
        fields = definition["properties"]
        given = {name for name, field in fields.items() if "default" in field}
        definition["required"] = [*definition.get("required", ()), *given]
    for field in [field for each in types.values() for field in each["properties"].values()]:
        if "$ref" in field and "default" in field:
            definition = types[type_of(field)]
            definition["required"] = [*set(definition["required"]) & set(field["default"])]
    types["SamplingParams"]["properties"]["seed"]["anyOf"].append({"type": "bigint"})
    return namespace("Read", schema)


def written_types(*structs: type[msgspec.Struct]) -> list[str]:
    """Return the types of structs that are written with all of their fields."""
    _, types = msgspec.json.schema_components(structs)
    for definition in types.values():
        definition["required"] = list(definition["properties"])
    return [f"  type {name} = {type_of(definition)};" for name, definition in types.items()]


def export_types() -> str:
    """Return the namespace Exported: a plan file, and the manifest of an export."""
    _, types = msgspec.json.schema_components([PlanFile])
    lines = [f"  type {name} = {type_of(definition)};" for name, definition in types.items()]
    return "\n".join(["declare namespace Exported {", *lines, *written_types(Manifest), "}", ""])


def answer_types() -> str:
    """Return the namespace Answers: what routes and instruments answer."""
    answers = (
        ModelOffers, DtypeOffers, ReplicaStatus, PlanReport, Inventory, TensorSummary, SizingAnswer,
        TrainOffer, StepAnswer, LoraChange, EncoderAttentionAnswer, Seq2SeqAnswer, RetrievalOffer,
        SearchAnswer,
    )  # fmt: skip
    return "\n".join(["declare namespace Answers {", *written_types(*answers), "}", ""])


class Ids(HTMLParser):
    """Collects the tags of a template's elements by their ids."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        id = dict(attrs).get("id")
        if id and "{" not in id:
            self.tags[id] = tag


def element_types() -> str:
    """Return the type of the page's elements by their ids."""
    ids = Ids()
    for path in sorted(assets("templates").rglob("*.html")):
        ids.feed(path.read_text("utf-8"))
    drawn = ("svg", "symbol", "use")
    maps = {
        tag: f"{'SVG' if tag in drawn else 'HTML'}ElementTagNameMap" for tag in ids.tags.values()
    }
    lines = [f'  {json.dumps(id)}: {maps[tag]}["{tag}"];' for id, tag in sorted(ids.tags.items())]
    return "\n".join(["interface ElementsById {", *lines, "}", ""])


def declarations() -> str:
    """Return all of these types as a declaration file."""
    messages = protocol_schema()
    return "\n".join(
        [
            namespace("FromPage", messages["from_page"]),
            read_types(messages["from_page"]),
            namespace("ToPage", messages["to_page"]),
            namespace("ReplayFile", replay_schema()),
            export_types(),
            answer_types(),
            element_types(),
        ]
    )


if __name__ == "__main__":
    print(declarations())
