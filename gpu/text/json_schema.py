"""JSON schemas as llguidance must get them, so that what it writes follows them.

llguidance reads numbers as doubles, refuses formats that it does not know, and offers names of
`patternProperties` although all of them are taken. Here numbers are made exact or refused, other
formats become annotations, as JSON Schema has them (2020-12, 7.2.2), and patterns that only match
declared names become schemas of those.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from decimal import ROUND_FLOOR, Decimal
from typing import TYPE_CHECKING, Any

from gpu.errors import InvalidRequest
from gpu.text.grammar_vocabulary import byte_tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher

FORMATS = frozenset(
    [
        "date-time",
        "time",
        "date",
        "duration",
        "email",
        "hostname",
        "ipv4",
        "ipv6",
        "uuid",
        "uri",
        "unknown",
    ]
)
"""Formats that llguidance enforces."""

SCHEMA_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
SCHEMA_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
SCHEMAS = (
    *("items", "additionalItems", "additionalProperties", "contains", "propertyNames", "not"),
    *("if", "then", "else", "unevaluatedItems", "unevaluatedProperties"),
)
LOWER, UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")

MAX_INTEGER = 2**63 - 1024
"""Largest double that is a 64-bit integer: llguidance's integers end there."""
EXACT_INTEGER = 2**53
EXACT_EXPONENT = 22
"""An integer below 2⁵³ with at most 22 decimal places is one division of two doubles, so that every
parser reads it right (Clinger 1990, "How to read floating point numbers accurately")."""
SAFE_DIGITS = 15

Schema = dict[str, Any]


def prepare_schema(root: Schema) -> None:
    """Change a schema in place to one that llguidance reads as JSON Schema defines it. Raises
    InvalidRequest, naming the keyword, for numbers that cannot be kept."""
    schemas = list(_schemas(root))
    for schema in schemas:
        if isinstance(schema.get("format"), str) and schema["format"] not in FORMATS:
            del schema["format"]
        _prepare_numbers(schema)
    if any("patternProperties" in schema for schema in schemas):
        names = {name for schema in schemas for name in _declared(schema)}
        for schema in schemas:
            _resolve_patterns(schema, names)


def _schemas(root: Schema) -> Iterator[Schema]:
    """Yield a schema and all schemas inside of it, also those that only a `$ref` says are some."""
    found: dict[int, Schema] = {}
    waiting: list[Any] = [root]
    while waiting:
        schema = waiting.pop()
        if not isinstance(schema, dict) or id(schema) in found:
            continue
        found[id(schema)] = schema
        for key in SCHEMA_MAPS:
            if isinstance(schema.get(key), dict):
                waiting += schema[key].values()
        for key in SCHEMA_LISTS:
            if isinstance(schema.get(key), list):
                waiting += schema[key]
        waiting += [schema[key] for key in SCHEMAS if key in schema]
        waiting.append(_referred(root, schema.get("$ref")))
    yield from found.values()


def _referred(root: Schema, reference: Any) -> Any:
    """Return what a JSON pointer into the document refers to; None if there is none."""
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    at: Any = root
    for part in reference[2:].split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(at, list) and key.isdecimal() and int(key) < len(at):
            at = at[int(key)]
        elif isinstance(at, dict):
            at = at.get(key)
        else:
            return None
    return at


# ---- numbers -------------------------------------------------------------------------------------


def _prepare_numbers(schema: Schema) -> None:
    if "const" in schema:
        schema["const"] = _exact(schema["const"], "const")
    if isinstance(schema.get("enum"), list):
        schema["enum"] = [_exact(value, "enum") for value in schema["enum"]]
    given = {key: schema[key] for key in (*LOWER, *UPPER) if _is_number(schema.get(key))}
    for key, value in given.items():
        side = -1 if key in LOWER else 1
        found = _kept_below(side * value)
        if found is None:
            raise _not_kept(key, value)
        schema[key] = side * found
    for low, high in itertools.product(given.keys() & LOWER, given.keys() & UPPER):
        if given[low] <= given[high] and schema[low] > schema[high]:
            raise _not_kept(f"a number from {low} {given[low]!r:.80} to {high}", given[high])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _exact(value: Any, keyword: str) -> Any:
    """Return a value of `const` or `enum` as llguidance reads it exactly. Raises InvalidRequest for
    a number that it cannot."""
    if isinstance(value, list):
        return [_exact(item, keyword) for item in value]
    if isinstance(value, dict):
        return {name: _exact(item, keyword) for name, item in value.items()}
    if not _is_number(value):
        return value
    if isinstance(value, int) and abs(value) <= MAX_INTEGER and float(value) == value:
        return value
    if isinstance(value, float) and _is_read_right(value):
        return value
    if isinstance(value, int) and abs(value) > MAX_INTEGER and _is_written_right(value):
        return float(value)
    raise _not_kept(keyword, value)


def _is_written_right(value: int) -> bool:
    """Return whether the shortest decimal of the double of `value` is `value`."""
    try:
        return Decimal(repr(float(value))) == value and _is_read_right(float(value))
    except OverflowError:
        return False


def _is_read_right(value: float) -> bool:
    """Return whether every parser reads the shortest decimal of `value` as `value`."""
    if not math.isfinite(value):
        return False
    _, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    significand = int("".join(map(str, digits)))
    return significand < EXACT_INTEGER and abs(int(exponent)) <= EXACT_EXPONENT


def _kept_below(limit: float) -> float | None:
    """Return the number next to `limit`, at most it, that is kept exactly; None if there is none.
    Numbers between the two are given up."""
    if limit != limit or limit < -MAX_INTEGER:
        return None
    limit = min(limit, MAX_INTEGER)
    if limit != int(limit):
        return limit if _is_read_right(limit) else _shortened(limit)
    found, limit = float(limit), int(limit)
    while int(found) > limit or Decimal(repr(found)) > limit:
        found = math.nextafter(found, -math.inf)
    return int(found)


def _shortened(value: float) -> float:
    """Return the largest decimal, at most `value`, of few enough digits and places."""
    exact = Decimal(value)
    places = max(exact.adjusted() - SAFE_DIGITS + 1, -EXACT_EXPONENT)
    return float(exact.quantize(Decimal(1).scaleb(places), ROUND_FLOOR))


def _not_kept(what: str, value: float) -> InvalidRequest:
    return InvalidRequest(
        f"{what} {value!r:.80} cannot be kept exactly: numbers of a grammar are doubles, which "
        "hold integers to 2^53, or 15 digits; send such numbers as strings",
        "grammar",
    )


# ---- names ---------------------------------------------------------------------------------------


def _declared(schema: Schema) -> list[str]:
    """Return the names that an object's schema mentions."""
    properties, required = schema.get("properties"), schema.get("required")
    names = list(properties) if isinstance(properties, dict) else []
    if isinstance(required, list):
        names += [name for name in required if isinstance(name, str) and name not in names]
    return names


def _resolve_patterns(schema: Schema, all_names: set[str]) -> None:
    """Replace each pattern that matches declared names alone by schemas of those names: of this
    object's, or of all in the document, as objects are merged."""
    patterns = schema.get("patternProperties")
    if not isinstance(patterns, dict):
        return
    own = _declared(schema)
    for pattern in list(patterns):
        for names in (own, sorted(all_names.union(own))):
            taken = _matching(pattern, names)
            if taken and not _matches_more(pattern, taken):
                properties = schema.setdefault("properties", {})
                also = patterns.pop(pattern)
                for name in taken:
                    before = properties.get(name)
                    properties[name] = also if before is None else {"allOf": [before, also]}
                break


def _matching(pattern: str, names: list[str]) -> list[str]:
    """Return the names that the pattern matches as llguidance reads it; none if it cannot."""
    start = _matcher({"type": "string", "pattern": pattern})

    def is_matched(name: str) -> bool:
        matcher = start.deep_copy()
        text = json.dumps(name, ensure_ascii=False).encode()
        return matcher.consume_tokens(list(text)) and matcher.is_accepting()

    return [] if start.is_error() else [name for name in names if is_matched(name)]


def _matches_more(pattern: str, taken: list[str]) -> bool:
    """Return whether an object that has the names `taken` may have another one of the pattern."""
    any_digit = {"type": "integer", "minimum": 0, "maximum": 9}
    matcher = _matcher(
        {
            "type": "object",
            "properties": dict.fromkeys(taken, any_digit),
            "required": taken,
            "patternProperties": {pattern: any_digit},
            "additionalProperties": False,
        }
    )
    members = [f"{json.dumps(name, ensure_ascii=False)}:0," for name in taken]
    read = matcher.consume_tokens(list("".join(["{", *members]).encode()))
    matcher.compute_bitmask()
    return not (read and matcher.is_error())


def _matcher(schema: Schema) -> LLMatcher:
    """Return the matcher of a schema for a vocabulary of the bytes, without white space."""
    from llguidance import LLMatcher

    schema = {"x-guidance": {"whitespace_flexible": False}, **schema}
    return LLMatcher(byte_tokenizer(), LLMatcher.grammar_from_json_schema(schema), log_level=0)
