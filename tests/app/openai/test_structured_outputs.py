"""Structured outputs: the official client and the bundled model, errors, limits."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from typing import Any, Literal

import jsonschema
import msgspec
import openai
import pydantic
import pytest
from openai.types.chat import (
    ChatCompletionMessageParam,
    ChatCompletionNamedToolChoiceParam,
    ChatCompletionToolParam,
)
from openai.types.chat.chat_completion import Choice

from app import tale
from app.openai.schema import ChatRequest
from app.openai.structured_outputs import StructuredOutputs
from gpu import (
    Grammar,
    GrammarCompiler,
    GrammarVocabulary,
    InvalidRequest,
    Tokenizer,
)

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Tell me of a fox."}]
MODEL = "tale-3m"
SETTINGS: dict[str, Any] = {"model": MODEL, "messages": HELLO, "temperature": 1.5}
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 16},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "friends": {"type": "array", "items": {"$ref": "#/$defs/animal"}, "maxItems": 3},
    },
    "required": ["name", "age", "friends"],
    "additionalProperties": False,
    "$defs": {"animal": {"enum": ["fox", "owl", "bear"]}},
}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "animal", "schema": SCHEMA}}


class Animal(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=16)
    legs: int = pydantic.Field(ge=0, le=8)
    friend: Literal["fox", "owl"] | None


def test_json_that_follows_a_schema(client: openai.OpenAI) -> None:
    answers = client.chat.completions.create(
        **SETTINGS, response_format=FORMAT, seed=1, n=4, max_tokens=300
    )
    texts = [choice.message.content or "" for choice in answers.choices]
    assert [choice.finish_reason for choice in answers.choices] == ["stop"] * 4
    for text in texts:
        jsonschema.validate(json.loads(text), SCHEMA)
    assert len(set(texts)) == 4, "each choice has its own place in the grammar"


def test_the_answer_is_parsed_into_a_model_of_pydantic(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        **SETTINGS, response_format=Animal, seed=4, max_tokens=300
    )
    assert isinstance(answer.choices[0].message.parsed, Animal)


def test_the_responses_api_follows_a_schema_too(client: openai.OpenAI) -> None:
    answer = client.responses.parse(
        model=MODEL, input="Tell me of a fox.", temperature=1.5, text_format=Animal,
        max_output_tokens=300, extra_body={"seed": 4},
    )  # fmt: skip
    assert isinstance(answer.output_parsed, Animal)
    assert answer.text is not None
    assert answer.text.format is not None
    assert answer.text.format.type == "json_schema"


def test_a_stream_is_the_same_text(client: openai.OpenAI) -> None:
    settings = {**SETTINGS, "response_format": FORMAT, "seed": 7, "max_tokens": 300}
    whole = client.chat.completions.create(**settings).choices[0].message.content
    chunks = client.chat.completions.create(**settings, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole


def test_any_json_object(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        **SETTINGS, response_format={"type": "json_object"}, seed=2, max_tokens=400, top_p=0.3
    )
    text, reason = answer.choices[0].message.content or "", answer.choices[0].finish_reason
    assert text.startswith("{")
    if reason == "stop":
        assert isinstance(json.loads(text), dict)


def test_a_limit_cuts_json(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        **SETTINGS, response_format=FORMAT, seed=1, max_tokens=4
    )
    assert answer.choices[0].finish_reason == "length"


@pytest.mark.parametrize("n", [110, pytest.param(160, marks=pytest.mark.slow)])
def test_an_open_string_is_ended_in_time_for_the_rest(client: openai.OpenAI, n: int) -> None:
    open_ended = {"type": "string", "minLength": 4000}  # more than so many tokens can hold
    properties = {"tale": {"type": "string"}, "end": {"type": "string"}, "n": {"type": "integer"}}
    schema = {"type": "object", "properties": properties, "required": [*properties],
              "additionalProperties": False}  # fmt: skip
    ban = {"logit_bias": dict.fromkeys(quoting_ids(), -100)}
    answer = client.chat.completions.create(
        **SETTINGS, response_format=schema_format(schema)["response_format"], seed=1,
        max_tokens=n, extra_body=ban,
    )  # fmt: skip
    jsonschema.validate(json.loads(answer.choices[0].message.content or ""), schema)
    assert answer.choices[0].finish_reason == "length"
    cut = client.chat.completions.create(
        **SETTINGS, response_format=schema_format(open_ended)["response_format"], max_tokens=n
    )
    assert cut.choices[0].finish_reason == "length"


def quoting_ids() -> list[int]:
    """Return the tokens with which a string may end; a model that is biased against them ends none
    by itself."""
    tokenizer = Tokenizer.load(tale.model_dir())
    return [id for id in range(tokenizer.vocab_size) if b'"' in tokenizer.token_bytes(id)]


def test_plain_text_is_free(client: openai.OpenAI) -> None:
    free, plain = (
        client.chat.completions.create(**SETTINGS, seed=3, max_tokens=8, **more)
        for more in ({}, {"response_format": {"type": "text"}})
    )
    assert plain.choices[0].message.content == free.choices[0].message.content


@pytest.mark.parametrize(
    ("extra", "pattern"),
    [
        ({"structured_outputs": {"choice": ["yes", 'n"ö', "maybe"]}}, 'yes|n"ö|maybe'),
        ({"structured_outputs": {"regex": r"[A-Z][a-z]{2,5} \d\d"}}, r"[A-Z][a-z]{2,5} \d\d"),
        ({"structured_outputs": {"grammar": 'root ::= ("fox" | "owl") "!"'}}, "(fox|owl)!"),
        ({"structured_outputs": {"json": {"enum": [1, 22]}}}, "1|22"),
        ({"structured_outputs": {"json": '{"type": "boolean"}'}}, "true|false"),
        ({"grammar": 'root ::= [a-c]{3}'}, "[a-c]{3}"),
        ({"json_schema": {"const": "x"}}, '"x"'),
    ],
    ids=["choice", "regex", "grammar", "json", "json-text", "llama-grammar", "llama-schema"],
)  # fmt: skip
def test_fields_of_other_servers(client: openai.OpenAI, extra: Any, pattern: str) -> None:
    chat = client.chat.completions.create(**SETTINGS, seed=5, max_tokens=60, extra_body=extra)
    assert re.fullmatch(pattern, chat.choices[0].message.content or "")
    text = client.completions.create(
        model=MODEL, prompt="Once", seed=6, max_tokens=60, extra_body=extra
    )
    assert re.fullmatch(pattern, text.choices[0].text)


@pytest.mark.parametrize("n", [1, 4000])
def test_thousands_of_choices(client: openai.OpenAI, n: int) -> None:
    texts = [f"Label {i}" for i in range(n)]
    extra = {"structured_outputs": {"choice": texts}}
    chat = client.chat.completions.create(**SETTINGS, seed=2, max_tokens=60, extra_body=extra)
    assert chat.choices[0].message.content in texts
    assert chat.choices[0].finish_reason == "stop"


def test_a_choice_may_begin_another() -> None:
    texts = ["", "a", "ab", 'b"\\']
    grammar = StructuredOutputs(choice=texts).as_grammar()
    tokens = [bytes([byte]) for byte in range(256)]
    compiler = GrammarCompiler(lambda: GrammarVocabulary([*tokens, b"<eos>"], [256], (256,)))
    for text in texts:
        matcher = compiler.matcher(grammar, [])
        for byte in text.encode():
            assert matcher.allowed[byte]
            matcher.read(byte)
        assert matcher.complete or matcher.allowed[256], "the text may end"


def schema_format(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        (schema_format({"type": "thing"}), "response_format", "Invalid type: thing"),
        (schema_format({"const": 2**53 + 1}), "response_format", "const 9007199254740993 cannot"),
        (schema_format({"not": {}}), "response_format", 'not supported: ["not"]'),
        (schema_format({"properties": {"a": {"uniqueItems": True, "type": "array"}}}),
         "response_format", "uniqueItems"),
        (schema_format({"type": "integer", "multipleOf": 123456789}), "response_format",
         "takes longer than 2 s"),
        (schema_format({"description": "x" * 70_000}), "response_format", "65,536 characters"),
        (schema_format(3), "response_format.json_schema.schema", "Expected `object`"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "xml"),
        (
            {"response_format": {"type": "json_schema"}},
            "response_format.json_schema",
            "json_schema",
        ),
        ({"structured_outputs": {"regex": "["}}, "structured_outputs", "unclosed character class"),
        ({"structured_outputs": {}}, "structured_outputs", "has none"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs",
         "has regex and choice"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "length >= 1"),
        (
            {"structured_outputs": {"structural_tag": "x"}},
            "structured_outputs.structural_tag",
            "unknown fields",
        ),
        ({"guided_json": {}}, "guided_json", "unknown fields are refused"),
        ({"grammar": "root ::= other"}, "grammar", "other"),
        ({"grammar": 'root ::= "a"', "json_schema": {}}, "json_schema", "grammar and json_schema"),
    ],
)  # fmt: skip
def test_what_cannot_be_followed_is_refused_by_name(
    url: str, body: dict[str, Any], param: str, message: str
) -> None:
    whole = json.dumps({"messages": HELLO, "max_tokens": 4, **body}).encode()
    request = urllib.request.Request(f"{url}/v1/chat/completions", whole)
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request)
    error = json.load(caught.value)["error"]
    assert (caught.value.code, error["param"]) == (400, param)
    assert message in error["message"]


def test_a_client_that_goes_away_ends_its_run(client: openai.OpenAI, url: str) -> None:
    chunks = client.chat.completions.create(
        **SETTINGS, extra_body={"structured_outputs": {"regex": "[a-z ]*"}}, stream=True,
        max_tokens=480,
    )  # fmt: skip
    next(iter(chunks))
    chunks.close()
    again = client.chat.completions.create(**SETTINGS, response_format=FORMAT, max_tokens=2)
    assert again.choices[0].finish_reason == "length"


def test_one_of_vllms_fields_is_needed() -> None:
    assert StructuredOutputs(json_object=True).as_grammar() == Grammar(
        "json_schema", '{"type": "object"}'
    )
    with pytest.raises(InvalidRequest, match="has none"):
        StructuredOutputs(json_object=False).as_grammar()


def test_an_answer_under_a_grammar_cannot_call_tools() -> None:
    tools = [{"type": "function", "function": {"name": "add"}}]
    body = {"messages": HELLO, "json_schema": {}, "tools": tools}
    with pytest.raises(InvalidRequest, match="cannot call tools") as error:
        msgspec.convert(body, ChatRequest).constraint()
    assert error.value.param == "json_schema"
    assert msgspec.convert({**body, "tool_choice": "none"}, ChatRequest).constraint()


TOOLS: list[ChatCompletionToolParam] = [
    {"type": "function", "function": {"name": name, "parameters": SCHEMA}}
    for name in ("describe", "forget")
]


def called(choice: Choice) -> list[str]:
    """Return the names of the functions that were called; their arguments follow the schema."""
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    names = []
    for call in choice.message.tool_calls or []:
        assert call.type == "function"
        jsonschema.validate(json.loads(call.function.arguments), SCHEMA)
        names.append(call.function.name)
    return names


def test_a_call_that_is_required_is_written_whatever_the_model_wants(
    client: openai.OpenAI,
) -> None:
    answer = client.chat.completions.create(
        **SETTINGS, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, n=2, seed=3
    )
    for choice in answer.choices:
        (name,) = called(choice)
        assert name in ("describe", "forget")
    chosen: ChatCompletionNamedToolChoiceParam = {
        "type": "function",
        "function": {"name": "forget"},
    }
    with client.chat.completions.stream(
        **SETTINGS, tools=TOOLS, tool_choice=chosen, seed=4
    ) as stream:
        assert called(stream.get_final_completion().choices[0]) == ["forget"]
