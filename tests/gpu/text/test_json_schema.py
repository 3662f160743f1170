"""Schemas as JSON Schema defines them, where llguidance reads them otherwise: texts drawn at random
follow them, or the schema is refused by the name of the keyword."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import numpy as np
import pytest

from gpu.errors import InvalidRequest
from gpu.grammar import Grammar
from gpu.text.grammar_matcher import GrammarCompiler
from gpu.text.grammar_vocabulary import GrammarVocabulary
from gpu.text.json_schema import FORMATS, prepare_schema

BYTES = [bytes([byte]) for byte in range(256)]
EOS = len(BYTES)
COMPILER = GrammarCompiler(lambda: GrammarVocabulary([*BYTES, b"<eos>"], [EOS], (EOS,)))
N_TEXTS = 12
MAX_CHARS = 400


def compact(schema: Any) -> dict[str, Any]:
    return {"x-guidance": {"whitespace_flexible": False}, **schema}


def drawn(schema: Any, seed: int, grammar: Grammar | None = None) -> str | None:
    """Return a text that is drawn byte by byte; None if it did not end by itself."""
    rng = random.Random(seed)
    matcher = COMPILER.matcher(grammar or Grammar("json_schema", json.dumps(compact(schema))), [])
    written = b""
    while not matcher.complete:
        assert not matcher.failure, f"{matcher.failure} after {written!r}"
        if len(written) == MAX_CHARS:
            return None
        id = int(rng.choice(np.flatnonzero(matcher.allowed)))
        if id == EOS:
            break
        written += BYTES[id]
        matcher.read(id)
    return written.decode()


def refusal(schema: Any) -> str:
    with pytest.raises(InvalidRequest) as refused:
        COMPILER.matcher(Grammar("json_schema", json.dumps(schema)), [])
    assert refused.value.param == "grammar"
    return str(refused.value)


@pytest.mark.parametrize(
    "number",
    [
        *(0, -3, 100, 2**53 - 1, 2**53, -(2**53), 2**53 + 2, 10**18, 2**63 - 1024, -(2**63) + 1024),
        *(10**19, 10**22, 1e22, 0.1, -0.5, 1e-7, 123456.7890123, 2.5e-10, 1.0),
    ],
)
def test_a_number_that_doubles_hold_is_written_exactly(number: float) -> None:
    nested = {"enum": [{"id": [number]}]}
    for seed in range(3):
        assert json.loads(drawn({"const": number}, seed) or "") == number
        assert json.loads(drawn(nested, seed) or "") == {"id": [number]}


@pytest.mark.parametrize(
    "number",
    [
        *(2**53 + 1, -(2**53) - 1, 1234567890123456789, 700000000000000001),
        *(2**63 - 1, -(2**63), 2**63, 2**64 - 1, 10**22 + 1, 10**400),
        *(123456789.12345679, 0.30000000000000004, 5e-324, 1e300),
    ],
)
def test_a_number_that_is_not_kept_is_refused_by_its_keyword(number: float) -> None:
    assert refusal({"const": number}).startswith(f"const {number!r:.80} cannot be kept exactly")
    assert "send such numbers as strings" in refusal({"enum": [1, number]})
    properties = {"properties": {"a": {"$ref": "#/x/a"}}, "x": {"a": {"const": [{"b": number}]}}}
    assert refusal(properties).startswith("const ")
    assert refusal({"type": "integer", "minimum": number, "maximum": number})


LIMITS: list[dict[str, Any]] = [
    {"type": "integer", "minimum": 0, "maximum": 2**64 - 1},
    {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
    {"type": "integer", "minimum": 1234567890123456789, "maximum": 1234567890123459999},
    {"type": "integer", "exclusiveMinimum": 2**60 + 1, "exclusiveMaximum": 2**60 + 999},
    {"type": "number", "minimum": 1234567890123456789, "maximum": 1234567890123459999},
    {"minimum": -1234567890123459999, "maximum": -1234567890123456789, "type": "number"},
    {"type": "number", "minimum": -1.7976931348623157e308, "maximum": 1.7976931348623157e308},
    {"type": "number", "minimum": 123456789.12345679, "maximum": 123456789.12349},
    {"type": "number", "minimum": 0.30000000000000004, "maximum": 0.30000000000001},
    {"type": ["integer", "null"], "minimum": 2**53 + 1, "maximum": 2**53 + 99},
    {"allOf": [{"type": "integer"}, {"minimum": 2**53 + 1, "maximum": 2**53 + 99}]},
]


@pytest.mark.parametrize("schema", LIMITS, ids=json.dumps)
def test_limits_beyond_what_doubles_hold_are_kept(schema: dict[str, Any]) -> None:
    texts = [drawn(schema, seed) for seed in range(N_TEXTS)]
    values = [json.loads(text) for text in texts if text is not None]
    assert len(values) > N_TEXTS // 2
    for value in values:
        jsonschema.validate(value, schema)


def test_a_limit_that_is_kept_stays_as_it_is() -> None:
    for schema in (
        {"minimum": 0, "maximum": 2**53},
        {"exclusiveMinimum": -0.5, "maximum": 1e-7},
        {"minimum": True, "maximum": "9"},
    ):
        prepared = dict(schema)
        prepare_schema(prepared)
        assert prepared == schema


def test_limits_with_nothing_between_that_is_kept_are_refused() -> None:
    assert refusal({"type": "integer", "minimum": 2**53 + 1, "maximum": 2**53 + 1}).startswith(
        f"a number from minimum {2**53 + 1} to maximum {2**53 + 1} cannot be kept exactly"
    )
    assert refusal({"minimum": 2**64}).startswith(f"minimum {2**64} cannot")
    assert refusal({"minimum": float("nan")}).startswith("minimum nan cannot")
    assert refusal({"exclusiveMaximum": -1e30}).startswith("exclusiveMaximum -1e+30 cannot")


@pytest.mark.parametrize("format", ["path", "password", "binary", "byte", "made-up", "regex"])
def test_a_format_that_is_not_known_is_an_annotation(format: str) -> None:
    text = {"type": "string", "format": format, "maxLength": 3, "minLength": 2}
    schema = {"properties": {"format": {"anyOf": [text]}}, "required": ["format"],
              "additionalProperties": False, "type": "object"}  # fmt: skip
    for seed in range(3):
        jsonschema.validate(json.loads(drawn(schema, seed) or ""), schema)
    inside = Grammar("lark", f'start: "x" %json {json.dumps(compact(schema))}')
    value = (drawn(None, 0, inside) or "").removeprefix("x")
    jsonschema.validate(json.loads(value), schema)


@pytest.mark.parametrize("format", sorted(FORMATS - {"unknown", "date", "time"}))
def test_known_formats_still_act(format: str) -> None:
    assert "Unsatisfiable" in refusal({"type": "string", "format": format, "const": "!"})


def test_a_date_is_one() -> None:
    assert len(json.loads(drawn({"type": "string", "format": "date"}, 0) or "")) == 10


def test_a_format_that_is_no_text_is_refused() -> None:
    assert "format" in refusal({"type": "string", "format": {}})


def test_what_is_no_schema_is_left_alone() -> None:
    schema = {"const": {"format": "x", "patternProperties": {"a": 1}}, "default": 2**53 + 1,
              "properties": {"format": True}, "examples": [0.1 + 0.2]}  # fmt: skip
    prepared = json.loads(json.dumps(schema))
    prepare_schema(prepared)
    assert prepared == schema


DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}
SMALL = {"type": "integer", "minimum": 0, "maximum": 5}
CLOSED = {"type": "object", "additionalProperties": False}
PATTERNS: dict[str, dict[str, Any]] = {
    "the same name": {"properties": {"g": DIGIT}, "patternProperties": {"^g$": SMALL}},
    "two names": {"properties": {"a": DIGIT, "b": DIGIT}, "patternProperties": {"^(a|b)$": SMALL}},
    "a wider pattern": {"properties": {"a": DIGIT}, "patternProperties": {"^[ab]$": SMALL}},
    "no overlap": {"properties": {"g": DIGIT}, "patternProperties": {"^y$": DIGIT}},
    "required alone": {"patternProperties": {"^g$": SMALL}, "required": ["g"]},
    "a name with an escape": {"properties": {'"ö': DIGIT}, "patternProperties": {'^"ö$': SMALL}},
    "one of two patterns": {
        "properties": {"g": DIGIT},
        "patternProperties": {"^g$": SMALL, "^x$": DIGIT},
    },
    "merged": {
        "additionalProperties": True,
        "allOf": [
            {**CLOSED, "properties": {"a": DIGIT, "b": DIGIT}},
            {**CLOSED, "patternProperties": {"^(a|b)$": SMALL}},
        ],
    },
    "referred to": {
        "$defs": {"p": {"properties": {"g": DIGIT}, "patternProperties": {"^g$": SMALL}, **CLOSED}},
        "properties": {"p": {"$ref": "#/$defs/p"}},
        "required": ["p"],
    },
}


@pytest.mark.parametrize("part", PATTERNS.values(), ids=PATTERNS)
def test_a_pattern_whose_names_are_declared_leads_nowhere_else(part: dict[str, Any]) -> None:
    schema = {**CLOSED, **part}
    texts = [drawn(schema, seed) for seed in range(N_TEXTS)]
    values = [json.loads(text) for text in texts if text is not None]
    assert any(values), "not all objects are empty"
    for value in values:
        jsonschema.validate(value, schema)
