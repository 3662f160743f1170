"""The types that tsc checks the page's code with say what the schemas say, and are not given up."""

from __future__ import annotations

import re
from pathlib import Path

from tests.js.schema_types import declarations, namespace
from tests.serving import ROOT

MAX_ANY = 20
COMMENT = re.compile(r"/\*\*.*?\*/", re.DOTALL)
ANY = re.compile(r"(?:[:<{(|,=]|=>)\s*any(?=\s*[\[>),;|}&])")


def test_each_keyword_has_its_type() -> None:
    thing = {
        "type": "object",
        "properties": {
            "n": {"type": "integer"},
            "kind": {"enum": ["a", "b"]},
            "of": {"anyOf": [{"$ref": "#/$defs/Other"}, {"type": "null"}], "default": None},
            "list": {"type": "array", "items": {"type": "boolean"}},
            "by_name": {"type": "object", "additionalProperties": {"type": "string"}},
            "pair": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]},
        },
        "required": ["n", "kind", "list", "by_name", "pair"],
    }
    assert namespace("X", {"$ref": "#/$defs/Thing", "$defs": {"Thing": thing}}).splitlines() == [
        "declare namespace X {",
        "  type Any = Thing;",
        '  type Thing = { "n": number; "kind": "a" | "b"; "of"?: Other | null; '
        '"list": Array<boolean>; "by_name": Record<string, string>; "pair": [number, string] };',
        "}",
    ]


def test_the_messages_and_the_replay_file_have_types() -> None:
    text = declarations()
    for name in ("FromPage", "Read", "ToPage", "ReplayFile", "Exported", "Answers"):
        assert f"declare namespace {name} {{" in text
    assert "type Any = Hello | Status | Generation" in text


def test_a_message_that_was_read_has_its_defaults() -> None:
    """A default is not read in turn, so what it leaves out may be missing."""
    read = {line.split(" = ")[0].split()[-1]: line for line in namespace_of("Read")}
    assert '"written": number;' in read["Generate"]
    assert '"pace": number | null' in read["Generate"]
    assert '"pace"?: number | null' in read["Update"], "which has no default"
    assert '"heads"?:' in read["Interventions"]
    assert '"seed": number | null | bigint' in read["SamplingParams"]


def namespace_of(name: str) -> list[str]:
    """Return the types of a namespace, a line each."""
    _, _, after = declarations().partition(f"declare namespace {name} {{\n")
    return after[: after.index("\n}")].splitlines()


def types_of(path: Path) -> str:
    """Return what may be types: the comments of JavaScript, and all of a declaration file."""
    text = path.read_text("utf-8")
    return text if path.suffix == ".ts" else " ".join(COMMENT.findall(text))


def test_few_types_are_any() -> None:
    paths = sorted((ROOT / "static/js").rglob("*.[jt]s"))
    found = [path.name for path in paths for _ in ANY.findall(types_of(path))]
    assert len(found) <= MAX_ANY, found
