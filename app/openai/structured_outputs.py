"""Structured outputs: the fields of a request that say what its answers must follow.

`response_format` is OpenAI's, `structured_outputs` is vLLM's, `grammar` and `json_schema` are
llama-server's. A request may have one of them. Unlike OpenAI's, every schema is followed to the
letter, whatever `strict` says.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, NamedTuple

import msgspec

from gpu import Grammar, InvalidRequest

ANY_OBJECT = '{"type": "object"}'


class TextFormat(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="text"
):
    """Any text."""


class JsonObjectFormat(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="json_object"
):
    """Any JSON object."""


class JsonSchema(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A JSON schema. Name and description change nothing: no model here sees them."""

    schema: dict[str, Any]
    name: str = ""
    description: str | None = None
    strict: bool | None = None


class JsonSchemaFormat(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="json_schema"
):
    """JSON that follows a schema."""

    json_schema: JsonSchema


class StructuredOutputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """vLLM's field. Exactly one of:

    json         JSON that follows this schema, an object or its text
    json_object  true: any JSON object
    regex        the whole text matches this regular expression
    choice       one of these texts
    grammar      a grammar in GBNF or Lark
    """

    json: dict[str, Any] | str | None = None
    json_object: bool | None = None
    regex: str | None = None
    choice: Annotated[list[str], msgspec.Meta(min_length=1)] | None = None
    grammar: str | None = None

    def as_grammar(self) -> Grammar:
        """Raises InvalidRequest unless exactly one is given."""
        given = [
            name for name in self.__struct_fields__ if getattr(self, name) not in (None, False)
        ]
        if len(given) != 1:
            raise InvalidRequest(
                "structured_outputs must have exactly one of json, json_object, regex, choice and "
                f"grammar, but has {' and '.join(given) or 'none'}",
                "structured_outputs",
            )
        if self.regex is not None:
            return Grammar("regex", self.regex)
        if self.grammar is not None:
            return Grammar("gbnf", self.grammar)
        if self.choice is not None:
            texts = [json.dumps(text, ensure_ascii=False) for text in self.choice]
            # A terminal: as a rule, each of thousands would be an item of the parser.
            return Grammar("lark", f"start: CHOICE\nCHOICE: {' | '.join(texts)}")
        if self.json is not None:
            return of_schema(self.json)
        return Grammar("json_schema", ANY_OBJECT)


class Constraint(NamedTuple):
    """Grammar of a request's answers, and the field that it comes from."""

    grammar: Grammar
    field: str


class StructuredFields(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of both kinds of completion of which one says what the text must follow."""

    response_format: TextFormat | JsonObjectFormat | JsonSchemaFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    grammar: str | None = None
    json_schema: dict[str, Any] | None = None

    def constraint(self) -> Constraint | None:
        """Return what the answers must follow; None: nothing. Raises InvalidRequest for two."""
        found = []
        match self.response_format:
            case JsonObjectFormat():
                found.append(Constraint(Grammar("json_schema", ANY_OBJECT), "response_format"))
            case JsonSchemaFormat(json_schema=wanted):
                found.append(Constraint(of_schema(wanted.schema), "response_format"))
        if self.structured_outputs is not None:
            found.append(Constraint(self.structured_outputs.as_grammar(), "structured_outputs"))
        if self.grammar:
            found.append(Constraint(Grammar("gbnf", self.grammar), "grammar"))
        if self.json_schema is not None:
            found.append(Constraint(of_schema(self.json_schema), "json_schema"))
        if len(found) > 1:
            fields = [constraint.field for constraint in found]
            raise InvalidRequest(
                f"a text can follow one grammar, but the request has {' and '.join(fields)}; send "
                "one of them",
                fields[1],
            )
        return found[0] if found else None


def of_schema(schema: dict[str, Any] | str) -> Grammar:
    """Return the grammar of JSON that follows a schema."""
    return Grammar("json_schema", schema if isinstance(schema, str) else json.dumps(schema))


@contextmanager
def naming(constraint: Constraint | None) -> Iterator[None]:
    """Raise errors about the grammar as errors about the field that it comes from."""
    try:
        yield
    except InvalidRequest as error:
        if constraint is None or error.param != "grammar":
            raise
        raise InvalidRequest(f"{constraint.field}: {error}", constraint.field) from None
