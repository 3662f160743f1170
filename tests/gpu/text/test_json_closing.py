"""Ends of JSON texts whose strings and numbers have none of their own."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import numpy as np
import pytest

from gpu.grammar import Grammar
from gpu.text.grammar_matcher import GrammarCompiler
from gpu.text.grammar_vocabulary import GrammarVocabulary

BYTES = [bytes([byte]) for byte in range(256)]
EOS = len(BYTES)
WORDS = [b"<eos>", b'"}', b'",', b'": "', b"ab", b" the", "\u2728".encode(), b'"]}', b"123"]
VOCABULARY = GrammarVocabulary([*BYTES, *WORDS], [EOS], (EOS,))
COMPILER = GrammarCompiler(lambda: VOCABULARY)
TEXT = {"type": "string"}
SCHEMAS: dict[str, Any] = {
    "a text": TEXT,
    "an integer": {"type": "integer"},
    "a number": {"type": "number"},
    "a list": {"type": "array", "items": TEXT, "minItems": 2},
    "a text of a pattern": {"type": "string", "pattern": "^[^\\n]*$"},
    "an object": {
        "type": "object",
        "properties": {"a": TEXT, "n": {"type": "integer"}, "b": TEXT, "c": {"enum": ["x", "yy"]}},
        "required": ["a", "n", "b", "c"],
        "additionalProperties": False,
    },
}


def goes_on(token: bytes) -> bool:
    """Return whether a token ends no string, list, object or number that it is in."""
    return token != b"<eos>" and not set(token) & set(b'"]},')


def written(schema: Any, n: int, seed: int, endless: bool) -> tuple[str, bool, bool]:
    """Return a text of at most `n` tokens, whether it is complete, and whether it was closed.
    `endless`: by a model that ends nothing that may go on."""
    rng = random.Random(seed)
    matcher = COMPILER.matcher(Grammar("json_schema", json.dumps(schema)), [])
    text = b""
    for left in range(n, 0, -1):
        ids = np.flatnonzero(matcher.allowed)
        if endless:
            going_on = [id for id in ids if goes_on(VOCABULARY.tokens[id])]
            plain = [id for id in ids if len(VOCABULARY.tokens[id]) == 1]
            ids = np.array(going_on or plain or ids)
        id = int(rng.choice(ids))
        if id == EOS:
            return text.decode(), True, matcher.closed
        text += VOCABULARY.tokens[id]
        matcher.read(id)
        assert not matcher.failure
        matcher.end_within(left - 1)
        if matcher.complete:
            return text.decode(), True, matcher.closed
    return text.decode(errors="replace"), False, matcher.closed


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_a_text_that_would_never_end_is_closed_by_the_limit(schema: Any) -> None:
    for seed in range(5):
        text, complete, closed = written(schema, 120, seed, endless=True)
        assert complete
        assert closed
        jsonschema.validate(json.loads(text), schema)
        assert len(text) > 40, "what is left is used"


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
@pytest.mark.parametrize("n", [60, 200])
def test_any_text_ends_within_its_limit(schema: Any, n: int) -> None:
    for seed in range(10):
        text, complete, _ = written(schema, n, seed, endless=False)
        assert complete
        jsonschema.validate(json.loads(text), schema)


def test_a_text_that_ends_by_itself_is_not_closed() -> None:
    schema = {"type": "string", "maxLength": 5}
    for seed in range(5):
        text, complete, closed = written(schema, 200, seed, endless=False)
        assert complete
        assert not closed
        assert len(json.loads(text)) <= 5


def test_what_has_no_room_for_an_end_is_cut_as_before() -> None:
    _, complete, _ = written(SCHEMAS["an object"], 6, 0, endless=True)
    assert not complete
