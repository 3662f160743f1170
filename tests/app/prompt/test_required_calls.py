"""Grammars of calls that a model must write: whatever follows them is read as calls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

import jsonschema
import numpy as np
import pytest

from app.prompt.conversation import Tool
from app.prompt.tool_calls.parser import ToolCallParser
from app.prompt.tool_calls.registry import tool_format
from gpu.text.grammar_matcher import GrammarCompiler, GrammarVocabulary
from tests.app.fake_tokenizer import FakeTokenizer
from tests.app.prompt.real_templates import template
from tests.app.prompt.test_tool_calls import FAMILIES, Answer, added_up

SCHEMAS = {
    "get_weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 6},
            "days": {"type": "integer", "minimum": 1, "maximum": 14},
        },
        "required": ["city"],
        "additionalProperties": False,
    },
    "add": {
        "type": "object",
        "properties": {"terms": {"type": "array", "items": {"enum": [1, 2.5]}, "maxItems": 3}},
        "required": ["terms"],
        "additionalProperties": False,
    },
}
TOOLS: list[Tool] = [
    {"type": "function", "function": {"name": name, "parameters": schema}}
    for name, schema in SCHEMAS.items()
]
N_TEXTS = 6
MAX_TOKENS = 1500


class Written(NamedTuple):
    """A text that follows a grammar: its tokens, and what is read in it."""

    pieces: list[str]
    answer: Answer


def written(
    source: str, marks: tuple[str, ...], seed: int, parallel: bool, tools: Sequence[Tool] = TOOLS
) -> Written:
    """Write a text at random in which each token is one that the grammar allows."""
    tokenizer = FakeTokenizer(source, marks)
    form = tool_format(source)
    grammar = form.pattern(source).grammar(tokenizer, tools, parallel)
    vocabulary = GrammarVocabulary.of(tokenizer, tokenizer.vocab_size, tokenizer.eos_ids)
    matcher = GrammarCompiler(lambda: vocabulary).matcher(grammar, [])
    chance = np.random.default_rng(seed)
    ids: list[int] = []
    while not matcher.complete:
        assert len(ids) < MAX_TOKENS
        allowed = np.flatnonzero(matcher.allowed)
        ends = [id for id in tokenizer.eos_ids if id in allowed]
        id = ends[0] if ends and chance.random() < 0.5 else int(chance.choice(allowed))
        if id in tokenizer.eos_ids:
            break
        ids.append(id)
        matcher.read(id)
    parser = ToolCallParser(form, SCHEMAS)
    data = [
        tokenizer.piece(id).encode() if tokenizer.is_special(id) else tokenizer.token_bytes(id)
        for id in ids
    ]
    read = [*parser.push(b"".join(data).decode()), *parser.finish()]
    return Written([tokenizer.piece(id) for id in ids], added_up(read))


NEWER_MISTRAL = "{% if tools %}[TOOL_CALLS]{{ name }}[ARGS]{{ arguments }}"
SOURCES = {name: template(name) for name in FAMILIES} | {"newer mistral": NEWER_MISTRAL}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_what_follows_the_grammar_is_calls_alone_that_follow_their_schemas(source: str) -> None:
    marks = tuple(sorted(tool_format(source).tokens))
    names = set()
    for seed in range(N_TEXTS):
        text = written(source, marks if seed % 2 else (), seed, parallel=True)
        assert text.answer.content == ""
        assert text.answer.calls
        for name, arguments in text.answer.calls:
            jsonschema.validate(json.loads(arguments), SCHEMAS[name])
            names.add(name)
        marked = [mark for mark in marks if mark in "".join(text.pieces)]
        assert all((mark in text.pieces) == bool(seed % 2) for mark in marked)
    assert names == set(SCHEMAS)


@pytest.mark.parametrize("name", ["qwen-2.5", "mistral-nemo", "llama-3.2"])
def test_several_calls_are_written_only_where_they_may_be(name: str) -> None:
    source = SOURCES[name]
    counts = {
        parallel: {len(written(source, (), seed, parallel).answer.calls) for seed in range(N_TEXTS)}
        for parallel in (True, False)
    }
    assert counts[False] == {1}
    assert (counts[True] == {1}) == (name == "llama-3.2")  # its template reads one call alone


def test_arguments_are_an_object_where_the_schema_names_no_type() -> None:
    schema = {name: value for name, value in SCHEMAS["add"].items() if name != "type"}
    tool: Tool = {"type": "function", "function": {"name": "add", "parameters": schema}}
    for seed in range(N_TEXTS):
        text = written(SOURCES["qwen-2.5"], (), seed, False, [tool])
        [(name, arguments)] = text.answer.calls
        assert name == "add"
        jsonschema.validate(json.loads(arguments), SCHEMAS["add"])
