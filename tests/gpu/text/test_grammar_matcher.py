"""Grammars as masks: what may come next, the end, and grammars that cannot be used."""

from __future__ import annotations

import json

import jsonschema
import numpy as np
import pytest

from gpu.errors import InvalidRequest
from gpu.grammar import MAX_GRAMMAR_CHARS, Grammar
from gpu.text.grammar_matcher import GrammarCompiler, GrammarMatcher, GrammarVocabulary

EOS = 1
TOKENS = [b"<|start|>", b"<|end|>", b"", *(bytes([byte]) for byte in range(256)), b"ab", b"true"]
VOCABULARY = GrammarVocabulary(TOKENS, [0, EOS], (EOS,))
FIRST_BYTE = 3


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(lambda: VOCABULARY)


def ids_of(text: str) -> list[int]:
    return [FIRST_BYTE + byte for byte in text.encode()]


def allowed(matcher: GrammarMatcher) -> list[bytes]:
    bits = np.unpackbits(matcher.bitmask.view(np.uint8), bitorder="little")
    assert len(matcher.bitmask) == -(-len(TOKENS) // 32)
    ids = np.flatnonzero(bits)
    assert len(ids) == matcher.n_allowed
    return [TOKENS[id] for id in ids]


def test_tokens_that_may_come_next_also_those_of_several_characters(
    compiler: GrammarCompiler,
) -> None:
    matcher = compiler.matcher(Grammar("regex", "a(b|c)d?"), [])
    assert allowed(matcher) == [b"a", b"ab"]
    matcher.read(TOKENS.index(b"ab"))
    assert allowed(matcher) == [b"<|end|>", b"d"], "the text may end, or go on"
    matcher.read(ids_of("d")[0])
    assert matcher.complete
    assert matcher.n_allowed == 0


def test_a_text_may_be_ended_where_it_may_end(compiler: GrammarCompiler) -> None:
    matcher = compiler.matcher(Grammar("regex", "a+"), ids_of("xa"))
    assert allowed(matcher) == [b"a"], "the prompt is not part of it"
    matcher.read(ids_of("a")[0])
    assert not matcher.complete
    matcher.read(EOS)
    assert matcher.complete


def test_the_text_of_an_earlier_run_is_read_first(compiler: GrammarCompiler) -> None:
    prompt = ids_of('story {"a"')
    matcher = compiler.matcher(Grammar("json_schema", '{"type": "object"}', n_read=4), prompt)
    assert b":" in allowed(matcher)
    with pytest.raises(InvalidRequest, match="the last 5 tokens of the prompt do not follow") as e:
        compiler.matcher(Grammar("json_schema", '{"type": "object"}', n_read=5), prompt)
    assert e.value.param == "grammar"


def test_a_matcher_does_not_move_those_of_the_same_grammar(compiler: GrammarCompiler) -> None:
    first, second = (compiler.matcher(Grammar("regex", "abc"), []) for _ in range(2))
    first.read(ids_of("a")[0])
    assert allowed(first) == [b"b"]
    assert allowed(second) == [b"a", b"ab"]


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        (Grammar("gbnf", 'root ::= "x" [0-9]+ "."'), "x12."),
        (Grammar("gbnf", 'start: "x" /[0-9]+/ "."'), "x12."),
        (Grammar("lark", 'start: "<call>" %json {"type": "integer"} "</call>"'), "<call>7</call>"),
        (Grammar("regex", r"\d\d/\d\d"), "12/24"),
        (Grammar("json_schema", '{"enum": ["ä", 1]}'), '"ä"'),
    ],
    ids=lambda value: value.kind if isinstance(value, Grammar) else "",
)
def test_kinds_of_grammars(compiler: GrammarCompiler, grammar: Grammar, text: str) -> None:
    matcher = compiler.matcher(grammar, [])
    for id in ids_of(text):
        assert TOKENS[id] in allowed(matcher)
        assert not matcher.complete
        matcher.read(id)
    assert matcher.complete


def test_special_tokens_are_named_by_grammars_and_are_no_text(compiler: GrammarCompiler) -> None:
    assert allowed(compiler.matcher(Grammar("lark", 'start: <|start|> "a"'), [])) == [b"<|start|>"]
    assert allowed(compiler.matcher(Grammar("regex", r"<\|start\|>"), [])) == [b"<"]


def test_a_vocabulary_without_an_end_token() -> None:
    alone = GrammarCompiler(lambda: GrammarVocabulary([b"a", b"b"], [], ()))
    matcher = alone.matcher(Grammar("regex", "ab?"), [])
    matcher.read(0)
    assert (matcher.bitmask.tolist(), matcher.n_allowed, matcher.complete) == ([0b10], 1, False)
    matcher.read(1)
    assert matcher.complete
    with pytest.raises(InvalidRequest, match="the model has no token that may come next"):
        alone.matcher(Grammar("regex", "c"), [])


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        (Grammar("regex", "[a"), "unclosed character class"),
        (Grammar("lark", "start: nothing"), 'unknown name: "nothing"'),
        (Grammar("lark", "start: <|other|>"), "unknown special token"),
        (Grammar("gbnf", 'root ::= "'), "the grammar cannot be read"),
        (Grammar("json_schema", "{"), "the schema is not JSON"),
        (Grammar("json_schema", "[" * 60_000), "the schema is not JSON"),
        (Grammar("json_schema", "3"), "a schema must be a JSON object"),
        (Grammar("json_schema", '{"not": {}}'), r'keywords that are not supported: \["not"\]'),
        (Grammar("json_schema", '{"type": "thing"}'), "Invalid type: thing"),
        (Grammar("json_schema", '{"$ref": "http://a.example"}'), "http://a.example"),
        (Grammar("lark", 'start: ""'), "it is complete, nothing can follow"),
        (Grammar("lark", "x" * (MAX_GRAMMAR_CHARS + 1)), "a grammar may have 65,536 characters"),
        (Grammar("regex", "a", n_read=1), "n_read must be from 0 to the 0 tokens"),
        (Grammar("regex", "a", n_read=-1), "n_read must be"),
    ],
    ids=str,
)
def test_grammars_that_cannot_be_used(
    compiler: GrammarCompiler, grammar: Grammar, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message) as error:
        compiler.matcher(grammar, [])
    assert error.value.param == "grammar"


def test_masks_have_a_time_by_the_number_of_tokens(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter(range(100_000))
    took = {"ms": 0.0}
    monkeypatch.setattr(
        "gpu.text.grammar_matcher.time.thread_time", lambda: next(now) * took["ms"] / 1000
    )
    matcher = compiler.matcher(Grammar("regex", "a*b"), [])
    took["ms"] = 10.0
    for _ in range(200):
        matcher.read(ids_of("a")[0])
    assert not matcher.failure, "10 ms each are allowed, for as long as it writes"
    took["ms"] = 21.0
    n_read = 0
    while not matcher.failure:
        matcher.read(ids_of("a")[0])
        n_read += 1
    assert n_read == 46, "11 ms more than allowed each use up 500 ms"
    assert matcher.failure.startswith(
        "the grammar cannot be followed: finding the tokens it allows takes more than 10 ms a token"
    )


def test_reading_a_prompt_and_ending_a_text_take_of_that_time(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, took = iter(range(100_000)), {"ms": 2.0}
    monkeypatch.setattr(
        "gpu.text.grammar_matcher.time.thread_time", lambda: next(now) * took["ms"] / 1000
    )
    (a,) = ids_of("a")
    compiler.matcher(Grammar("regex", "a*b", n_read=400), [a] * 400)
    with pytest.raises(InvalidRequest, match="reading the text so far takes more than 1 ms a tok"):
        compiler.matcher(Grammar("regex", "a*b", n_read=600), [a] * 600)
    matcher = compiler.matcher(Grammar("json_schema", '{"type": "string"}'), [])
    matcher.read(ids_of('"')[0])
    took["ms"] = 600.0
    matcher.end_within(5)
    assert "more than 10 ms a token" in matcher.failure


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "friends": {"type": "array", "items": {"$ref": "#/$defs/animal"}, "maxItems": 3},
    },
    "required": ["name", "age", "friends"],
    "additionalProperties": False,
    "$defs": {"animal": {"enum": ["fox", "owl"]}},
}


@pytest.mark.parametrize("seed", range(20))
def test_texts_drawn_at_random_follow_their_schema(compiler: GrammarCompiler, seed: int) -> None:
    """No model: every token that is allowed is as likely as any other."""
    rng = np.random.default_rng(seed)
    matcher = compiler.matcher(Grammar("json_schema", json.dumps(SCHEMA)), [])
    text = b""
    for _ in range(2000):
        bits = np.unpackbits(matcher.bitmask.view(np.uint8), bitorder="little")
        id = int(rng.choice(np.flatnonzero(bits)))
        matcher.read(id)
        text += TOKENS[id]
        if matcher.complete:
            break
    assert matcher.complete
    jsonschema.validate(json.loads(text), SCHEMA)
    assert b"\n" * 3 not in text, "white space is bounded"
