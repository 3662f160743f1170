"""Calls of tools in the text of a model: each family's form, and any way to cut it into tokens."""

from __future__ import annotations

import json
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.prompt.tool_calls.parser import ToolCallParser
from app.prompt.tool_calls.pieces import CallArguments, CallBegin, Content, Piece
from app.prompt.tool_calls.registry import FORMATS, SYSTEM_MESSAGE, tool_format
from app.prompt.tool_calls.tool_format import ToolFormat
from gpu import InvalidRequest
from tests.app.prompt.real_templates import SOURCES, template

MISTRAL, GRANITE, HERMES, LLAMA = FORMATS
NAMES = ("get_weather", "add")
CITY = '{"city": "Paris"}'


class Answer(NamedTuple):
    """What pieces add up to."""

    content: str
    calls: list[tuple[str, str]]


def added_up(pieces: list[Piece]) -> Answer:
    content, calls = "", []
    for piece in pieces:
        match piece:
            case Content(text):
                assert text
                content += text
            case CallBegin(call, name):
                assert call == len(calls)
                calls.append((name, ""))
            case CallArguments(call, text):
                assert text
                assert call == len(calls) - 1
                calls[call] = (calls[call][0], calls[call][1] + text)
    return Answer(content, calls)


def parse(form: ToolFormat, *texts: str) -> Answer:
    parser = ToolCallParser(form, NAMES)
    pieces = [piece for text in texts for piece in parser.push(text)]
    return added_up([*pieces, *parser.finish()])


WEATHER, ADD = ("get_weather", CITY), ("add", '{"a": 1, "b": [2]}')
OBJECT = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
OTHER = '{"name": "add", "arguments": {"a": 1, "b": [2]}}'

CALLS: dict[str, tuple[ToolFormat, str, Answer]] = {
    "hermes": (HERMES, f"<tool_call>\n{OBJECT}\n</tool_call>", Answer("", [WEATHER])),
    "hermes, two after text": (
        HERMES,
        f"Let me see.\n<tool_call>\n{OBJECT}\n</tool_call>\n<tool_call>{OTHER}</tool_call>\n",
        Answer("Let me see.", [WEATHER, ADD]),
    ),
    "hermes, text after": (
        HERMES,
        f"<tool_call>{OBJECT}</tool_call>\nDone.",
        Answer("\nDone.", [WEATHER]),
    ),
    "hermes, a brace missing": (
        HERMES,
        f"<tool_call>{OBJECT[:-1]}</tool_call>",
        Answer("", [WEATHER]),
    ),
    "hermes, two braces missing": (
        HERMES,
        f"<tool_call>{OBJECT[:-2]}</tool_call>",
        Answer("", [("get_weather", CITY[:-1])]),
    ),
    "hermes, a bracket too many": (
        HERMES,
        f"<tool_call>\n{OBJECT}}}\n</tool_call>\nDone.",
        Answer("\nDone.", [WEATHER]),
    ),
    "hermes, a bracket too many and no closer": (
        HERMES,
        f"<tool_call>{OBJECT}}} is all.",
        Answer("} is all.", [WEATHER]),
    ),
    "hermes, the closer in a string": (
        HERMES,
        '<tool_call>{"name": "add", "arguments": {"a": "</tool_call>\\"}"}}</tool_call>',
        Answer("", [("add", '{"a": "</tool_call>\\"}"}')]),
    ),
    "hermes, cut off": (
        HERMES,
        f"<tool_call>{OBJECT[:-5]}",
        Answer("", [("get_weather", CITY[:-4])]),
    ),
    "hermes, arguments first": (
        HERMES,
        f'<tool_call>{{"arguments": {CITY}, "name": "get_weather"}}</tool_call>',
        Answer("", [WEATHER]),
    ),
    "hermes, no arguments": (
        HERMES,
        '<tool_call>{"name": "add"}</tool_call>',
        Answer("", [("add", "{}")]),
    ),
    "hermes, null arguments": (
        HERMES,
        '<tool_call>{"name": "add", "arguments": null}</tool_call>',
        Answer("", [("add", "{}")]),
    ),
    "hermes, members beside": (
        HERMES,
        f'<tool_call>{{"id": 5, "name": "get_weather", "arguments": {CITY}, "x": [1]}}</tool_call>',
        Answer("", [WEATHER]),
    ),
    "hermes, a function that nobody gave": (
        HERMES,
        '<tool_call>{"name": "fly", "arguments": {}}</tool_call>',
        Answer("", [("fly", "{}")]),
    ),
    "llama": (LLAMA, OBJECT.replace("arguments", "parameters"), Answer("", [WEATHER])),
    "llama, python tag": (LLAMA, f"Now:<|python_tag|>{OBJECT}", Answer("Now:", [WEATHER])),
    "llama, two": (LLAMA, f" {OBJECT}; {OTHER}", Answer("", [WEATHER, ADD])),
    "llama, type in front": (
        LLAMA,
        f'{{"type": "function", {OBJECT[1:]}',
        Answer("", [WEATHER]),
    ),
    "mistral": (MISTRAL, f"[TOOL_CALLS] [{OBJECT}, {OTHER}]", Answer("", [WEATHER, ADD])),
    "mistral, names": (
        MISTRAL,
        f"Now[TOOL_CALLS]get_weather[ARGS]{CITY}[TOOL_CALLS]add[CALL_ID]x9[ARGS]{ADD[1]}",
        Answer("Now", [WEATHER, ADD]),
    ),
    "mistral, names alone": (MISTRAL, f"[TOOL_CALLS]get_weather{CITY}", Answer("", [WEATHER])),
    "mistral, the second is none": (
        MISTRAL,
        f'[TOOL_CALLS][{OBJECT}, {{"city": 1}}]',
        Answer(', {"city": 1}]', [WEATHER]),
    ),
    "granite 4, arguments as a string": (
        HERMES,
        f'<tool_call>{{"name": "get_weather", "arguments": {json.dumps(CITY)}}}</tool_call>',
        Answer("", [WEATHER]),
    ),
    "a string of nothing": (
        HERMES,
        '<tool_call>{"name": "add", "arguments": " "}</tool_call>',
        Answer("", [("add", "{}")]),
    ),
    "a string that is cut off": (
        HERMES,
        '<tool_call>{"name": "add", "arguments": "{\\"a\\',
        Answer("", [("add", '{"a\\')]),
    ),
    "a string with wrong escapes": (
        HERMES,
        '<tool_call>{"name": "add", "arguments": "\\q\\u12\\ud83dx\\ud83d\\u0041"}</tool_call>',
        Answer("", [("add", "\\q\\u12\ufffdx\ufffdA")]),
    ),
    "granite": (GRANITE, f"<|tool_call|>[{OBJECT}, {OTHER}]", Answer("", [WEATHER, ADD])),
    "granite 3.1": (GRANITE, f"<tool_call>[{OBJECT}]", Answer("", [WEATHER])),
    "granite, an array alone": (GRANITE, f"[{OBJECT}]", Answer("", [WEATHER])),
}

NO_CALLS: dict[str, tuple[ToolFormat, str]] = {
    "nothing": (HERMES, ""),
    "white space": (HERMES, " \n"),
    "text": (HERMES, " Hello, <b>you</b>. \n"),
    "half an opener": (HERMES, "a <tool_ca"),
    "an opener alone": (HERMES, "<tool_call>"),
    "no json": (HERMES, "<tool_call>get_weather(Paris)</tool_call>"),
    "no name": (HERMES, '<tool_call>{"arguments": {}}</tool_call>'),
    "a name that is none": (HERMES, '<tool_call>{"name": "\\ud83d", "arguments": {}}</tool_call>'),
    "a number as name": (HERMES, '<tool_call>{"name": 1, "arguments": {}}</tool_call>'),
    "an array as arguments": (HERMES, '<tool_call>{"name": "add", "arguments": [1]}</tool_call>'),
    "a number as arguments": (HERMES, '<tool_call>{"name": "add", "arguments": 1}</tool_call>'),
    "another member": (HERMES, '<tool_call>{"function": "add", "arguments": {}}</tool_call>'),
    "cut off before the arguments": (HERMES, '<tool_call>{"name": "add", "argum'),
    "llama, another function": (LLAMA, '{"name": "Bob", "parameters": {"age": 5}}'),
    "llama, other json": (LLAMA, '{"city": "Paris", "name": "add"}'),
    "llama, not at the beginning": (LLAMA, f"So: {OBJECT}"),
    "llama, code": (LLAMA, '<|python_tag|>search.call(query="x")'),
    "mistral, no arguments": (MISTRAL, "[TOOL_CALLS]get_weather[ARGS]Paris"),
    "granite, a footnote": (GRANITE, "[1] Paris"),
}


@pytest.mark.parametrize(("form", "text", "expected"), CALLS.values(), ids=CALLS)
def test_calls_are_found(form: ToolFormat, text: str, expected: Answer) -> None:
    assert parse(form, text) == expected
    assert parse(form, *text) == expected


@pytest.mark.parametrize(("form", "text"), NO_CALLS.values(), ids=NO_CALLS)
def test_what_is_no_call_is_content(form: ToolFormat, text: str) -> None:
    assert parse(form, text) == Answer(text, [])
    assert parse(form, *text) == Answer(text, [])


def test_a_call_follows_what_was_none() -> None:
    text = f"<tool_call>oops <tool_call>{OBJECT}</tool_call>"
    assert parse(HERMES, text) == Answer("<tool_call>oops", [WEATHER])


FRAGMENTS = [
    *(mark for form in FORMATS for mark in sorted(form.tokens)),
    OBJECT,
    OTHER,
    CITY,
    '{"name": "add", "arguments": {',
    '"name": ',
    '"arguments": ',
    json.dumps(CITY + "\N{FOX FACE}"),
    *'{}[],;:" \n\\ax',
]


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
@settings(deadline=None)  # other programs may have the processor for long
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=12), st.data())
def test_any_cut_into_tokens_gives_the_same(
    form: ToolFormat, fragments: list[str], data: st.DataObject
) -> None:
    text = "".join(fragments)
    places = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=20)))
    tokens = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
    whole = parse(form, text)
    assert parse(form, *tokens) == whole
    if not whole.calls:
        assert whole.content == text


ARGUMENTS = st.dictionaries(
    st.text(),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=5,
    ),
    max_size=3,
)


@settings(deadline=None)  # other programs may have the processor for long
@given(ARGUMENTS, st.booleans())
def test_every_family_reads_any_arguments_as_they_were_written(
    arguments: dict[str, object], ascii_alone: bool
) -> None:
    written = json.dumps(arguments, ensure_ascii=ascii_alone)
    for value in (written, json.dumps(written, ensure_ascii=ascii_alone)):
        call = f'{{"name": "add", "arguments": {value}}}'
        last = f'{{"parameters": {value}, "name": "add"}}'
        for form, text in (
            (HERMES, f"<tool_call>{call}</tool_call>"),
            (HERMES, f"<tool_call>{last}</tool_call>"),
            (LLAMA, call),
            (LLAMA, last),
            (MISTRAL, f"[TOOL_CALLS][{call}]"),
            (MISTRAL, f"[TOOL_CALLS]add[ARGS]{value}"),
            (GRANITE, f"<|tool_call|>[{call}]"),
        ):
            assert parse(form, text) == Answer("", [("add", written)])


def test_text_is_held_back_only_while_it_may_begin_a_call() -> None:
    parser = ToolCallParser(HERMES, NAMES)
    assert parser.push("a <b") == [Content("a <b")]
    assert parser.push(" <tool_") == []
    assert parser.push("x") == [Content(" <tool_x")]
    assert parser.push('<tool_call>{"name": "add", "arguments": ') == []
    assert parser.push('{"a') == [CallBegin(0, "add"), CallArguments(0, '{"a')]
    assert parser.push('": 1') == [CallArguments(0, '": 1')]
    llama = ToolCallParser(LLAMA, NAMES)
    assert llama.push('{"ci') == []
    assert llama.push('ty"') == []
    assert llama.push(":") == []
    assert llama.push(" 1") == [Content('{"city": 1')]


FAMILIES = {
    "granite-3.0": GRANITE,
    "granite-3.3": GRANITE,
    "llama-3.1": LLAMA,
    "llama-3.2": LLAMA,
    "mistral-nemo": MISTRAL,
    "qwen-2.5": HERMES,
    "qwen-3": HERMES,
}
"""Published templates with tools; the others have none, and get them in the system message."""


@pytest.mark.parametrize("name", SOURCES)
def test_the_form_is_that_of_the_template(name: str) -> None:
    assert tool_format(template(name)) is FAMILIES.get(name, SYSTEM_MESSAGE)


def test_a_form_that_is_not_known_is_refused() -> None:
    for form in ("<tool_call>\n<function=name>\n</tool_call>", "functools[...]"):
        with pytest.raises(InvalidRequest, match="not known here; known: Mistral, Granite 3") as no:
            tool_format("{% if tools %}" + form)
        assert no.value.param == "tools"
