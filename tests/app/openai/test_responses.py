"""/v1/responses, with the official client and with requests that it would not send."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import openai
import pytest
from flask.testing import FlaskClient
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.app.conftest import Site, StartSite
from tests.app.openai.requests import hold_next_run

MODEL = "fake-story"
OPTIONS: dict[str, Any] = {
    "model": MODEL,
    "input": "Tell me a story.",
    "max_output_tokens": 12,
    "extra_body": {"seed": 3},
}
DELTA = "response.output_text.delta"


@pytest.fixture
def site(start_site: StartSite) -> Site:
    return start_site()


@pytest.fixture
def client(site: Site) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{site.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def post(client: FlaskClient, status: int = 200, **body: Any) -> dict[str, Any]:
    response = client.post("/v1/responses", json=body)
    assert response.status_code == status, response.text
    assert response.json is not None
    return response.json


def text_of(answer: dict[str, Any]) -> str:
    return str(answer["output"][0]["content"][0]["text"])


def events_of(stream: str) -> list[dict[str, Any]]:
    """Return the events of a stream, each named as its `type`, in order of their numbers."""
    found = []
    for block in stream.strip().split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        found.append(event)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


def test_an_answer_is_of_the_clients_type(client: openai.OpenAI) -> None:
    answer = client.responses.create(**OPTIONS)
    Response.model_validate(answer.model_dump())  # the client itself checks nothing
    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.output_text
    assert answer.usage is not None
    assert answer.usage.output_tokens == 12
    assert answer.usage.total_tokens == answer.usage.input_tokens + 12
    assert (answer.store, answer.previous_response_id) == (False, None)
    assert answer.max_output_tokens == 12


def test_it_is_the_text_of_a_chat_with_the_same_messages(http: FlaskClient) -> None:
    said = {"role": "user", "content": "Hi"}
    chat = {"messages": [{"role": "system", "content": "Be brief."}, said], "seed": 3}
    want = http.post("/v1/chat/completions", json={**chat, "max_tokens": 9}).json
    assert want is not None
    for given in (
        {"input": "Hi", "instructions": "Be brief."},
        {"input": [said], "instructions": "Be brief."},
        {"input": [{"role": "developer", "content": "Be brief."}, {**said, "type": "message"}]},
        {
            "instructions": "Be brief.",
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}],
        },
    ):
        answer = post(http, **given, seed=3, max_output_tokens=9)
        assert text_of(answer) == want["choices"][0]["message"]["content"]
        assert answer["usage"]["input_tokens"] == want["usage"]["prompt_tokens"]


def test_tokens_found_in_the_cache_are_counted(start_site: StartSite) -> None:
    client = start_site(reused=5).app.test_client()
    usage = post(client, input="Once upon a time, there was", max_output_tokens=1)["usage"]
    assert usage["input_tokens_details"]["cached_tokens"] == 5


def test_a_text_that_ends_is_complete(start_site: StartSite) -> None:
    client = start_site(text="The end.", ends=True).app.test_client()
    answer = post(client, input="Hi", temperature=0)
    assert (answer["status"], answer["incomplete_details"]) == ("completed", None)
    assert answer["output"][0]["status"] == "completed"
    assert answer["completed_at"] >= answer["created_at"]
    *_, last = events_of(
        client.post("/v1/responses", json={"input": "Hi", "temperature": 0, "stream": True}).text
    )
    assert last["type"] == "response.completed"
    assert text_of(last["response"]) == text_of(answer)


def test_a_stream_has_the_documented_events_and_the_text_of_the_whole(
    client: openai.OpenAI,
) -> None:
    whole = client.responses.create(**OPTIONS)
    events = list(client.responses.create(**OPTIONS, stream=True))
    adapter: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)
    for event in events:
        adapter.validate_python(event.model_dump())  # the client itself checks nothing
    types = [event.type for event in events]
    n_deltas = types.count(DELTA)
    assert types == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *[DELTA] * n_deltas,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    assert "".join(event.delta for event in events if event.type == DELTA) == whole.output_text
    last = events[-1]
    assert last.type == "response.incomplete"
    assert last.response.output_text == whole.output_text
    assert last.response.usage is not None
    assert whole.usage is not None
    assert last.response.usage.output_tokens == whole.usage.output_tokens == 12


def test_the_clients_stream_helper_builds_the_answer(client: openai.OpenAI) -> None:
    with client.responses.stream(**OPTIONS) as stream:
        snapshots = [event.snapshot for event in stream if event.type == DELTA]
        answer = client.responses.create(**OPTIONS)
    assert snapshots[-1] == answer.output_text


def test_an_answer_is_sent_back_in_the_next_turn(client: openai.OpenAI) -> None:
    answer = client.responses.create(**OPTIONS)
    turns: list[Any] = [
        {"role": "user", "content": OPTIONS["input"]},
        *(item.model_dump() for item in answer.output),
        {"role": "user", "content": "Go on."},
    ]
    again = client.responses.create(**{**OPTIONS, "input": turns})
    assert answer.usage is not None
    assert again.usage is not None
    assert again.usage.input_tokens > answer.usage.input_tokens + 12


def test_settings_change_while_it_is_written(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = hold_next_run(site, monkeypatch)
    with openai.OpenAI(base_url=f"{site.url}/v1", api_key="none", max_retries=0) as client:
        stream = client.responses.create(**{**OPTIONS, "max_output_tokens": 400}, stream=True)
        events = iter(stream)
        created = next(events)
        assert created.type == "response.created"
        path = f"/v1/generations/{created.response.id}/params"
        assert site.app.test_client().post(path, json={"max_tokens": 20}).status_code == 200
        go_on()
        *_, last = events
    assert last.type == "response.incomplete"
    assert last.response.usage is not None
    assert last.response.usage.output_tokens == 20


def test_an_interrupted_stream_ends_with_an_error(start_site: StartSite) -> None:
    site = start_site(delay=0.05)
    with openai.OpenAI(base_url=f"{site.url}/v1", api_key="none", max_retries=0) as client:
        stream = client.responses.create(**{**OPTIONS, "max_output_tokens": 400}, stream=True)
        events = iter(stream)
        while next(events).type != DELTA:
            pass
        site.engine.close()
        *_, error, last = events
    assert error.type == "error"
    assert error.code == "unavailable"
    assert "send the request again with seed 3" in error.message
    assert last.type == "response.failed"
    assert last.response.error is not None
    assert last.response.error.message == error.message


MESSAGE = {"role": "user", "content": "Hi"}
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no input": ({}, "input"),
    "empty input": ({"input": []}, "input"),
    "a number": ({"input": 5}, "input"),
    "previous answer": ({"previous_response_id": "resp_1"}, "previous_response_id"),
    "a conversation": ({"conversation": "conv_1"}, "conversation"),
    "stored": ({"store": True}, "store"),
    "in the background": ({"background": True}, "background"),
    "tools": ({"tools": [{"type": "function", "name": "f"}]}, "tools"),
    "tool choice": ({"tool_choice": "required"}, "tool_choice"),
    "an unknown format": ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    "a format without its schema": (
        {"text": {"format": {"type": "json_schema"}}},
        "text.format.schema",
    ),
    "a schema of nothing": (
        {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "no"}}}},
        "text.format",
    ),
    "a format of chat": ({"response_format": {"type": "json_object"}}, "response_format"),
    "a grammar": ({"grammar": 'root ::= "a"'}, "grammar"),
    "a choice": ({"structured_outputs": {"choice": ["a"]}}, "structured_outputs"),
    "a schema": ({"json_schema": {}}, "json_schema"),
    "verbosity": ({"text": {"verbosity": "low"}}, "text.verbosity"),
    "reasoning": ({"reasoning": {"effort": "high"}}, "reasoning"),
    "truncation": ({"truncation": "middle"}, "truncation"),
    "include": ({"include": ["message.output_text.logprobs"]}, "include"),
    "a stored prompt": ({"prompt": {"id": "pmpt_1"}}, "prompt"),
    "several": ({"n": 2}, "n"),
    "no tokens": ({"max_output_tokens": 0}, "max_output_tokens"),
    "temperature": ({"temperature": -1}, "temperature"),
    "max_tokens": ({"max_tokens": 5}, "max_tokens"),
    "a call": ({"input": [{"call_id": "c", "type": "function_call"}]}, "input[0].type"),
    "a reference": ({"input": [MESSAGE, {"type": "item_reference"}]}, "input[1].type"),
    "no role": ({"input": [{"content": "Hi"}]}, "input[0].role"),
    "another role": ({"input": [{**MESSAGE, "role": "tool"}]}, "input[0].role"),
    "another field": ({"input": [{**MESSAGE, "tool_calls": []}]}, "input[0].tool_calls"),
    "an image": (
        {"input": [MESSAGE, {"role": "user", "content": [{"type": "input_image", "text": ""}]}]},
        "input[1].content[0].type",
    ),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("stream", [False, True])
def test_bad_requests_are_refused_by_name(http: FlaskClient, name: str, stream: bool) -> None:
    fields, param = BAD[name]
    body = {"input": "Hi", **fields, "stream": stream} if fields else {}
    assert post(http, 400, **body)["error"]["param"] == param


def test_values_that_change_nothing_are_accepted(http: FlaskClient) -> None:
    answer = post(
        http, input="Hi", max_output_tokens=2, store=False, tools=[], tool_choice="auto",
        truncation="disabled", text={"format": {"type": "text"}, "verbosity": "medium"},
        reasoning={"effort": "none"}, metadata={"a": "b"}, user="me", include=[],
        previous_response_id=None, parallel_tool_calls=True,
    )  # fmt: skip
    assert (answer["metadata"], answer["user"], answer["store"]) == ({"a": "b"}, "me", False)


def test_a_prompt_longer_than_the_context_is_refused(http: FlaskClient) -> None:
    error = post(http, 400, input="Once upon a time " * 400)["error"]
    assert error["code"] == "context_length_exceeded"


def test_a_conversation_past_the_context_loses_its_oldest_turns_if_asked(http: FlaskClient) -> None:
    turn = [{"role": "user", "content": "🦊" * 30}, {"role": "assistant", "content": "🦊" * 10}]
    long = {"input": [*turn * 4, MESSAGE], "instructions": "Be brief.", "max_output_tokens": 3}
    assert post(http, 400, **long)["error"]["code"] == "context_length_exceeded"
    answer = post(http, **long, truncation="auto")
    assert (answer["truncation"], answer["dropped_messages"]) == ("auto", 4)
    rest = post(http, **{**long, "input": [*turn * 2, MESSAGE]}, truncation="auto")
    assert rest["usage"]["input_tokens"] == answer["usage"]["input_tokens"], "instructions stay"
    assert "dropped_messages" not in rest


def test_what_nobody_recommends_is_as_in_openais_api(site: Site) -> None:
    """The page's settings for a model without recommendations are not those of `/v1`."""
    http, hello = site.app.test_client(), site.engine.require_ready()
    body = {"input": "Tell me a story.", "max_output_tokens": 1}
    recommended = post(http, **body)
    assert (recommended["temperature"], recommended["top_p"]) == (0.8, 0.95)
    site.engine._hello = msgspec.structs.replace(hello, recommended=False)
    own = post(http, **body)
    assert (own["temperature"], own["top_p"]) == (1.0, 1.0)
