"""Tools of chat completions, with the official `openai` client and a model that writes a script."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessage, ChatCompletionToolParam
from openai.types.chat.chat_completion import Choice

from tests.app.conftest import Site, StartSite
from tests.app.fake_tokenizer import CHAT_TEMPLATE, TOOL_TEMPLATE, FakeTokenizer
from tests.app.prompt.real_templates import template
from tests.serving import ROOT

MODEL = "fake-story"
ASKED: list[Any] = [{"role": "user", "content": "Weather in Paris?"}]
TOOLS: list[ChatCompletionToolParam] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    },
    {"type": "function", "function": {"name": "add"}},
]
CITY = '{"city": "Paris"}'
CALL = f'{{"name": "get_weather", "arguments": {CITY}}}'
OTHER = '{"name": "add", "arguments": {"a": 1}}'
TWO = f"Let me see.\n<tool_call>\n{CALL}\n</tool_call>\n<tool_call>\n{OTHER}\n</tool_call>"

Writing = Callable[..., openai.OpenAI]


@pytest.fixture
def writing(start_site: StartSite) -> Iterator[Writing]:
    """Return a function that returns a client of a model that writes `text`."""
    with ExitStack() as stack:

        def start(text: str, chat_template: str = TOOL_TEMPLATE, **options: Any) -> openai.OpenAI:
            site: Site = start_site(
                text=text, chat_template=chat_template, ends=True, context=4096, delay=0, **options
            )
            client = openai.OpenAI(base_url=f"{site.url}/v1", api_key="none", max_retries=0)
            return stack.enter_context(client)

        yield start


def ask(client: openai.OpenAI, **fields: Any) -> Choice:
    fields = {"messages": ASKED, "tools": TOOLS, "temperature": 0, **fields}
    answer = client.chat.completions.create(model=MODEL, **fields)
    return answer.choices[0]


def streamed(client: openai.OpenAI, **fields: Any) -> Choice:
    """Return what the client makes of a stream."""
    fields = {"messages": ASKED, "tools": TOOLS, "temperature": 0, **fields}
    with client.chat.completions.stream(model=MODEL, **fields) as stream:
        return stream.get_final_completion().choices[0]


def calls_of(message: ChatCompletionMessage) -> list[tuple[str, str]]:
    functions = [call.function for call in message.tool_calls or [] if call.type == "function"]
    return [(function.name, function.arguments) for function in functions]


# ---- answers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("get", [ask, streamed])
def test_calls_beside_text(writing: Writing, get: Callable[..., Choice]) -> None:
    choice = get(writing(TWO))
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see."
    assert calls_of(choice.message) == [("get_weather", CITY), ("add", '{"a": 1}')]
    ids = [call.id for call in choice.message.tool_calls or []]
    assert len(set(ids)) == 2
    assert all(id.startswith("call_") for id in ids)


@pytest.mark.parametrize("get", [ask, streamed])
def test_a_call_alone_has_no_content(writing: Writing, get: Callable[..., Choice]) -> None:
    choice = get(writing(f"\n<tool_call>{CALL}</tool_call>\n"))
    assert choice.message.content is None
    assert calls_of(choice.message) == [("get_weather", CITY)]


@pytest.mark.parametrize("get", [ask, streamed])
@pytest.mark.parametrize(
    "text", ["Once upon a time", f"<tool_call>get_weather({CITY})</tool_call>"]
)
def test_an_answer_without_calls_is_text(
    writing: Writing, get: Callable[..., Choice], text: str
) -> None:
    choice = get(writing(text))
    assert choice.finish_reason == "stop"
    assert choice.message.content == text
    assert not choice.message.tool_calls


def test_arguments_are_streamed_as_they_are_written(writing: Writing) -> None:
    stream = writing(TWO).chat.completions.create(
        model=MODEL, messages=ASKED, tools=TOOLS, temperature=0, stream=True
    )
    deltas = [chunk.choices[0].delta for chunk in stream]
    assert (deltas[0].role, deltas[0].content) == ("assistant", None)
    calls = [call for delta in deltas for call in delta.tool_calls or []]
    first = [call for call in calls if call.index == 0]
    assert (first[0].type, first[0].id is None) == ("function", False)
    assert [call.id for call in first[1:]] == [None] * (len(first) - 1)
    pieces = [call.function.arguments or "" for call in first if call.function is not None]
    assert "".join(pieces) == CITY
    assert len(pieces) > 8  # the fake model writes most letters as tokens of their own


def test_special_tokens_of_a_call_are_read(writing: Writing) -> None:
    client = writing(
        f"[TOOL_CALLS][{CALL}, {OTHER}]",
        template("mistral-nemo"),
        marks=("[TOOL_CALLS]", "[AVAILABLE_TOOLS]"),
    )
    for get in (ask, streamed):
        choice = get(client)
        assert choice.message.content is None
        assert calls_of(choice.message) == [("get_weather", CITY), ("add", '{"a": 1}')]
        ids = [call.id for call in choice.message.tool_calls or []]
        assert all(len(id) == 9 and id.isalnum() for id in ids)  # its template refuses others


def test_every_choice_has_its_calls(writing: Writing) -> None:
    client = writing(TWO)
    answer = client.chat.completions.create(
        model=MODEL, messages=ASKED, tools=TOOLS, temperature=0, n=3
    )
    calls = [calls_of(choice.message) for choice in answer.choices]
    assert calls == [[("get_weather", CITY), ("add", '{"a": 1}')]] * 3
    ids = [call.id for choice in answer.choices for call in choice.message.tool_calls or []]
    assert len(set(ids)) == 6
    with client.chat.completions.stream(
        model=MODEL, messages=ASKED, tools=TOOLS, temperature=0, n=2
    ) as stream:
        choices = stream.get_final_completion().choices
    assert [calls_of(choice.message) for choice in choices] == calls[:2]


@pytest.mark.parametrize("get", [ask, streamed])
def test_without_parallel_calls_only_the_first_is_returned(
    writing: Writing, get: Callable[..., Choice]
) -> None:
    choice = get(writing(TWO), parallel_tool_calls=False)
    assert calls_of(choice.message) == [("get_weather", CITY)]


def test_a_call_that_is_cut_off_ends_for_its_length(writing: Writing) -> None:
    written = "<tool_call>" + CALL.partition("ris")[0]
    n_tokens = len(FakeTokenizer().encode(written, bos=False))
    choice = ask(writing(f"<tool_call>{CALL}"), max_tokens=n_tokens)
    assert choice.finish_reason == "length"
    assert calls_of(choice.message) == [("get_weather", '{"city": "Pa')]


def test_logprobs_are_those_of_all_tokens(writing: Writing) -> None:
    client = writing(TWO)
    choice = ask(client, logprobs=True)
    assert choice.logprobs is not None
    whole = [entry.token for entry in choice.logprobs.content or []]
    assert "".join(whole) == TWO
    stream = client.chat.completions.create(
        model=MODEL, messages=ASKED, tools=TOOLS, temperature=0, logprobs=True, stream=True
    )
    entries = [
        entry.token
        for chunk in stream
        if chunk.choices[0].logprobs is not None
        for entry in chunk.choices[0].logprobs.content or []
    ]
    assert entries == whole


def test_with_tool_choice_none_the_model_sees_no_tools(writing: Writing) -> None:
    client = writing(TWO)
    choice = ask(client, tool_choice="none")
    assert (choice.message.content, choice.message.tool_calls) == (TWO, None)
    prompts = [
        client.chat.completions.create(
            model=MODEL, messages=ASKED, max_tokens=1, **fields
        ).usage.prompt_tokens  # type: ignore[union-attr]
        for fields in ({}, {"tools": TOOLS, "tool_choice": "none"}, {"tools": TOOLS})
    ]
    assert prompts[0] == prompts[1] < prompts[2]


# ---- the next turn ---------------------------------------------------------------------------


def applied(client: openai.OpenAI, messages: list[Any]) -> str:
    """Return the prompt of a conversation."""
    root = str(client.base_url).removesuffix("/v1/")
    answer = client.post(
        f"{root}/apply-template", body={"messages": messages, "tools": TOOLS}, cast_to=object
    )
    assert isinstance(answer, dict)
    return str(answer["prompt"])


@pytest.mark.parametrize("get", [ask, streamed])
def test_results_of_calls_in_the_next_turn(writing: Writing, get: Callable[..., Choice]) -> None:
    client = writing(TWO)
    message = get(client).message
    assert message.tool_calls is not None
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": f"result {i}"}
        for i, call in enumerate(message.tool_calls)
    ]
    for sent in (message, message.model_dump(), message.model_dump(exclude_none=True)):
        conversation = [*ASKED, sent, *results]
        assert ask(client, messages=conversation, max_tokens=1).message.role == "assistant"
    text = applied(client, [*ASKED, message.model_dump(), *results])
    written = text[text.index("<|assistant|>Let me see.") :]
    for call in (CALL, OTHER):
        assert f"<tool_call>{call}</tool_call>" in written  # an object, not a text of JSON
    for name, call, result in zip(("get_weather", "add"), message.tool_calls, results, strict=True):
        assert f"{name} {call.id}:{result['content']}\n<|end|>" in written


@pytest.mark.parametrize("arguments", ["{'a': 1}", "[1]", '"{}"', "{" * 200, '{"a": 1e999}'])
def test_arguments_that_are_no_object_come_back_as_the_model_wrote_them(
    writing: Writing, arguments: str
) -> None:
    called = {"id": "a", "type": "function", "function": {"name": "add", "arguments": arguments}}
    result = {"role": "tool", "tool_call_id": "a", "content": "no JSON object"}
    messages = [*ASKED, {"role": "assistant", "tool_calls": [called]}, result]
    assert json.dumps(arguments) in applied(writing("ok"), messages)


def test_the_loop_in_the_docs_runs(
    start_site: StartSite, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model calls with wrong arguments, then with right ones, then answers with the result."""
    script = [
        f'<tool_call>{{"name": "add", "arguments": {arguments}}}</tool_call>'
        for arguments in ('{"n": 17}', '{"numbers": [17, 25]}')
    ]
    site = start_site(
        chat_template=TOOL_TEMPLATE, ends=True, context=4096, delay=0, script=(*script, "It is 42.")
    )
    section = (ROOT / "docs/api.md").read_text("utf-8").partition("### Tools")[2]
    code = section.partition("```python")[2].partition("```")[0]
    assert code.count("messages=messages") == 1
    code = code.replace("messages=messages", "messages=messages, temperature=0")
    with openai.OpenAI(base_url=f"{site.url}/v1", api_key="none", max_retries=0) as client:
        program: dict[str, Any] = {"client": client}
        exec(code, program)
    results = [
        message["content"]
        for message in program["messages"]
        if isinstance(message, dict) and message["role"] == "tool"
    ]
    assert len(results) == 2
    assert results[0].startswith("TypeError")
    assert results[1] == "42"
    assert capsys.readouterr().out == "It is 42.\n"


# ---- errors ----------------------------------------------------------------------------------


def function(**fields: Any) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "add", **fields}}]


def called(*ids: str, **fields: Any) -> dict[str, Any]:
    add = {"name": "add", "arguments": "{}", **fields}
    calls = [{"id": id, "type": "function", "function": add} for id in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


RESULT = {"role": "tool", "tool_call_id": "a", "content": "1"}
NAMED = {"type": "function", "function": {"name": "add"}}

BAD_TOOLS: dict[str, tuple[dict[str, Any], str]] = {
    "no list": ({"tools": {}}, "tools"),
    "too many": ({"tools": function() * 129}, "tools"),
    "no type": ({"tools": [{"function": {"name": "add"}}]}, "tools[0].type"),
    "another type": ({"tools": [{"type": "custom"}]}, "tools[0].type"),
    "no function": ({"tools": [{"type": "function"}]}, "tools[0].function"),
    "no name": ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
    "empty name": ({"tools": function(name="")}, "tools[0].function.name"),
    "name with a space": ({"tools": function(name="a b")}, "tools[0].function.name"),
    "name with a line": ({"tools": function(name="a\n")}, "tools[0].function.name"),
    "long name": ({"tools": function(name="a" * 65)}, "tools[0].function.name"),
    "two of a name": ({"tools": function() * 2}, "tools[1].function.name"),
    "unknown field": ({"tools": function(returns={})}, "tools[0].function.returns"),
    "description no text": ({"tools": function(description=1)}, "tools[0].function.description"),
    "schema no object": ({"tools": function(parameters=[])}, "tools[0].function.parameters"),
    "schema of a text": (
        {"tools": function(parameters={"type": "string"})},
        "tools[0].function.parameters.type",
    ),
    "deep schema": ({"tools": function(parameters=nested(200))}, "tools[0].function.parameters"),
    "required without tools": ({"tool_choice": "required"}, "tool_choice"),
    "a chosen function without tools": ({"tool_choice": NAMED}, "tool_choice"),
    "a chosen function of others": ({"tools": TOOLS[:1], "tool_choice": NAMED}, "tool_choice"),
    "a schema that no grammar can follow": (
        {"tools": function(parameters={"type": "object", "if": {}}), "tool_choice": "required"},
        "tool_choice",
    ),
    "required beside another grammar": (
        {"tools": TOOLS, "tool_choice": "required", "response_format": {"type": "json_object"}},
        "response_format",
    ),
    "unknown choice": ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice"),
    "allowed tools": ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice.type"),
    "parallel number": ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
    "result without id": (
        {"messages": [*ASKED, called("a"), {"role": "tool", "content": "1"}]},
        "messages[2].tool_call_id",
    ),
    "result of no call": ({"messages": [*ASKED, RESULT]}, "messages[1].tool_call_id"),
    "result without content": (
        {"messages": [*ASKED, called("a"), {**RESULT, "content": None}]},
        "messages[2].content",
    ),
    "id of a user": (
        {"messages": [{**ASKED[0], "tool_call_id": "a"}]},
        "messages[0].tool_call_id",
    ),
    "calls of a user": (
        {"messages": [{**called("a"), "role": "user", "content": "a"}]},
        "messages[0].tool_calls",
    ),
    "two calls of an id": (
        {"messages": [*ASKED, called("a", "a")]},
        "messages[1].tool_calls[1].id",
    ),
    "arguments no text": (
        {"messages": [*ASKED, called("a", arguments={})]},
        "messages[1].tool_calls[0].function.arguments",
    ),
    "call without function": (
        {"messages": [*ASKED, {"role": "assistant", "tool_calls": [{"id": "a"}]}]},
        "messages[1].tool_calls[0].function",
    ),
    "no content and no calls": (
        {"messages": [{"role": "assistant", "tool_calls": []}]},
        "messages[0].content",
    ),
}


def test_bad_input_is_typed_and_names_the_field(writing: Writing) -> None:
    client = writing("ok")
    for what, (fields, param) in BAD_TOOLS.items():
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model=MODEL, **{"messages": ASKED, **fields})
        assert (caught.value.param, caught.value.type) == (param, "invalid_request_error"), what


def test_a_model_whose_template_has_no_tools_calls_them(writing: Writing) -> None:
    client = writing(TWO, CHAT_TEMPLATE)
    for get in (ask, streamed):
        choice = get(client)
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content == "Let me see."
        assert calls_of(choice.message) == [("get_weather", CITY), ("add", '{"a": 1}')]
    answer = ask(client, messages=[*ASKED, called("a"), RESULT])
    assert calls_of(answer.message)
