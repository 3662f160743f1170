"""The check of grammars in a process with limits."""

from __future__ import annotations

import time

import pytest

from app import tale
from app.prompt.grammar_check import MAX_SECONDS, check_grammar
from gpu import Grammar, InvalidRequest, Tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(tale.model_dir())


def check(tokenizer: Tokenizer, grammar: Grammar) -> None:
    check_grammar(grammar, tokenizer, tokenizer.vocab_size)


def test_grammars_that_can_be_used(tokenizer: Tokenizer) -> None:
    for grammar in (
        Grammar("json_schema", '{"type": "object"}'),
        Grammar("lark", 'start: <|im_start|> "ä" <[2]>'),
        Grammar("regex", "a+", n_read=7),  # the engine knows the prompt
    ):
        check(tokenizer, grammar)


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        (Grammar("regex", "["), "unclosed character class"),
        (Grammar("lark", "start: <|nobody|>"), "unknown special token"),
        (Grammar("regex", "\ud800"), "half of a surrogate pair"),
        (Grammar("regex", "a" * 70_000), "65,536 characters"),
        (
            Grammar("lark", "start: a\na: " + " | ".join(f'"a{i}"' for i in range(2500))),
            "the grammar cannot be followed: .*2501 items; max is 2000",
        ),
        (
            Grammar("json_schema", f'{{"const": {-(2**63)}}}'),
            "const -9223372036854775808 cannot be",
        ),
    ],
    ids=["regex", "special", "surrogate", "long", "items", "number"],
)
def test_faults(tokenizer: Tokenizer, grammar: Grammar, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as error:
        check(tokenizer, grammar)
    assert error.value.param == "grammar"


def test_a_schema_of_one_line_that_would_take_minutes_is_given_up(tokenizer: Tokenizer) -> None:
    check(tokenizer, Grammar("regex", "a"))
    began = time.monotonic()
    with pytest.raises(InvalidRequest, match="cannot be compiled: it takes longer than 2 s"):
        check(tokenizer, Grammar("json_schema", '{"type": "integer", "multipleOf": 123456789}'))
    assert time.monotonic() - began < MAX_SECONDS + 8
    check(tokenizer, Grammar("regex", "a"))
