"""The /v1 routes refuse what they cannot do, name the field, and say what to do."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from flask.testing import FlaskClient

from app.engine_client import OnEvent, Run
from app.protocol.messages import Hello
from gpu import Request, SamplingParams
from gpu.events import Done, Event, Token
from tests.app.conftest import Site, StartSite, wait_until_load_is
from tests.app.openai.requests import GREEDY, HELLO, chat, chunks, complete, http_client
from tests.app.page import PATIENCE_S

BAD_COMPLETIONS: dict[str, tuple[Any, str | None]] = {
    "not json": (b"prompt=Once", None),
    "nothing": (b"", None),
    "not an object": (b"[]", None),
    "not utf-8": (b'{"prompt":"\xff"}', None),
    "NaN": (b'{"prompt":"a","temperature":NaN}', None),
    "infinity": (b'{"prompt":"a","temperature":1e999}', "temperature"),
    "no prompt": ({}, "prompt"),
    "prompt null": ({"prompt": None}, "prompt"),
    "prompt empty list": ({"prompt": []}, "prompt"),
    "prompts and ids": ({"prompt": ["a", [1]]}, "prompt"),
    "a prompt of several is empty": ({"prompt": [[1], []]}, "prompt[1]"),
    "too many prompts": ({"prompt": ["a"] * 2049}, "prompt"),
    "id outside the vocabulary, of several": ({"prompt": [[1], [1, 10**6]]}, "prompt[1][1]"),
    "prompt deeper": ({"prompt": [[[1]]]}, "prompt[0][0]"),
    "mixed prompt": ({"prompt": ["a", 1]}, "prompt"),
    "id outside the vocabulary": ({"prompt": [10**6]}, "prompt[0]"),
    "negative id": ({"prompt": [-1]}, "prompt[0]"),
    "huge id": ({"prompt": [10**30]}, "prompt[0]"),
    "half a character": (b'{"prompt":"\\ud83d"}', None),
    "unknown field": ({"prompt": "a", "temprature": 1}, "temprature"),
    "chat template": ({"prompt": "a", "chat_template": "{{ 1 }}"}, "chat_template"),
    "temperature below": ({"prompt": "a", "temperature": -1}, "temperature"),
    "temperature above": ({"prompt": "a", "temperature": 1e9}, "temperature"),
    "temperature text": ({"prompt": "a", "temperature": "1"}, "temperature"),
    "temperature true": ({"prompt": "a", "temperature": True}, "temperature"),
    "top_k fraction": ({"prompt": "a", "top_k": 1.5}, "top_k"),
    "top_k below": ({"prompt": "a", "top_k": -2}, "top_k"),
    "top_p above": ({"prompt": "a", "top_p": 1.01}, "top_p"),
    "min_p below": ({"prompt": "a", "min_p": -0.5}, "min_p"),
    "penalty zero": ({"prompt": "a", "repetition_penalty": 0}, "repetition_penalty"),
    "seed below 64 bits": ({"prompt": "a", "seed": -(2**63) - 1}, "seed"),
    "seed too large": ({"prompt": "a", "seed": 2**64}, "seed"),
    "seed much too large": ({"prompt": "a", "seed": 10**400}, "seed"),
    "max_tokens zero of a stream": ({"prompt": "a", "max_tokens": 0, "stream": True}, "stream"),
    "max_tokens negative": ({"prompt": "a", "max_tokens": -5}, "max_tokens"),
    "max_tokens huge": ({"prompt": "a", "max_tokens": 2**40}, "max_tokens"),
    "stop empty": ({"prompt": "a", "stop": ""}, "stop"),
    "stop number": ({"prompt": "a", "stop": 5}, "stop"),
    "too many stops": ({"prompt": "a", "stop": ["x"] * 17}, "stop"),
    "logprobs above": ({"prompt": "a", "logprobs": 21}, "logprobs"),
    "logprobs below": ({"prompt": "a", "logprobs": -1}, "logprobs"),
    "logprobs after a penalty": (
        {"prompt": "a", "logprobs": 3, "repetition_penalty": 1.2},
        "logprobs",
    ),
    "log-probabilities of a prompt past the context": (
        {"prompt": [[1], [1] * 513], "echo": True, "logprobs": 1},
        "prompt[1]",
    ),
    "nothing after a prompt past the context": ({"prompt": [1] * 513, "max_tokens": 0}, "prompt"),
    "priority above others": ({"prompt": "a", "priority": -1}, "priority"),
    "priority huge": ({"prompt": "a", "priority": 10**30}, "priority"),
    "n zero": ({"prompt": "a", "n": 0}, "n"),
    "n above": ({"prompt": "a", "n": 17}, "n"),
    "best_of above": ({"prompt": "a", "best_of": 17}, "best_of"),
    "best_of below n": ({"prompt": "a", "n": 3, "best_of": 2}, "best_of"),
    "best_of of a stream": ({"prompt": "a", "best_of": 2, "stream": True}, "best_of"),
    "suffix": ({"prompt": "a", "suffix": "z"}, "suffix"),
    "frequency_penalty above": ({"prompt": "a", "frequency_penalty": 2.1}, "frequency_penalty"),
    "presence_penalty below": ({"prompt": "a", "presence_penalty": -2.1}, "presence_penalty"),
    "logprobs after a count": (
        {"prompt": "a", "logprobs": 3, "presence_penalty": 0.5},
        "logprobs",
    ),
    "logprobs after a logit_bias": (
        {"prompt": "a", "logprobs": 3, "logit_bias": {"5": 1}},
        "logprobs",
    ),
    "logit_bias of a word": ({"prompt": "a", "logit_bias": {"fox": 1}}, "logit_bias"),
    "logit_bias outside": ({"prompt": "a", "logit_bias": {"1000000": 1}}, "logit_bias"),
    "logit_bias negative id": ({"prompt": "a", "logit_bias": {"-1": 1}}, "logit_bias"),
    "logit_bias huge id": ({"prompt": "a", "logit_bias": {"9" * 5000: 1}}, "logit_bias"),
    "logit_bias twice": ({"prompt": "a", "logit_bias": {"5": 1, "05": 1}}, "logit_bias"),
    "logit_bias above": ({"prompt": "a", "logit_bias": {"5": 101}}, "logit_bias"),
    "logit_bias text": ({"prompt": "a", "logit_bias": {"5": "1"}}, "logit_bias[...]"),
    "too many logit_biases": (
        {"prompt": "a", "logit_bias": {str(i): 1 for i in range(301)}},
        "logit_bias",
    ),
    "usage without stream": (
        {"prompt": "a", "stream_options": {"include_usage": True}},
        "stream_options",
    ),
}


@pytest.mark.parametrize(("body", "param"), BAD_COMPLETIONS.values(), ids=BAD_COMPLETIONS)
def test_a_bad_completion_names_the_field(http: FlaskClient, body: Any, param: str | None) -> None:
    data = body if isinstance(body, bytes) else json.dumps(body)
    response = http.post("/v1/completions", data=data)
    assert response.status_code == 400, response.text
    assert response.json is not None
    error = response.json["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert len(error["message"]) > 15


BAD_CHATS: dict[str, tuple[dict[str, Any], str]] = {
    "no messages": ({"messages": []}, "messages"),
    "unknown role": ({"messages": [{"role": "judge", "content": "a"}]}, "messages[0].role"),
    "picture": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "text": ""}]}]},
        "messages[0].content[0].type",
    ),
    "format": ({"messages": HELLO, "response_format": {"type": "xml"}}, "response_format.type"),
    "top without logprobs": ({"messages": HELLO, "top_logprobs": 2}, "top_logprobs"),
    "too many logprobs": (
        {"messages": HELLO, "logprobs": True, "top_logprobs": 21},
        "top_logprobs",
    ),
    "max_tokens zero": ({"messages": HELLO, "max_tokens": 0}, "max_tokens"),
    "nested template": (
        {"messages": HELLO, "chat_template_kwargs": {"chat_template": "{{ 1 }}"}},
        "chat_template_kwargs",
    ),
    "no answer": ({"messages": HELLO, "add_generation_prompt": False}, "add_generation_prompt"),
    "continue a user": ({"messages": HELLO, "continue_final_message": True}, "messages"),
    **{
        f"a message's {name}": (
            {"messages": [*HELLO, {"role": "assistant", "content": "a", name: value}]},
            f"messages[1].{name}",
        )
        for name, value in {
            "refusal": "I will not",
            "audio": {"id": "a"},
            "function_call": {"name": "f", "arguments": "{}"},
        }.items()
    },
    "no content": ({"messages": [{"role": "assistant", "content": None}]}, "messages[0].content"),
    "functions": ({"messages": HELLO, "functions": [{"name": "f"}]}, "functions"),
    "sound": ({"messages": HELLO, "modalities": ["text", "audio"]}, "modalities"),
    "effort": ({"messages": HELLO, "reasoning_effort": "high"}, "reasoning_effort"),
    "search": ({"messages": HELLO, "web_search_options": {}}, "web_search_options"),
}


@pytest.mark.parametrize(("body", "param"), BAD_CHATS.values(), ids=BAD_CHATS)
def test_a_bad_chat_names_the_field(http: FlaskClient, body: dict[str, Any], param: str) -> None:
    response = http.post("/v1/chat/completions", json=body)
    assert response.status_code == 400, response.text
    assert response.json is not None
    assert response.json["error"]["param"] == param


def test_harmless_fields_are_ignored(http: FlaskClient) -> None:
    complete(http, user="u", n=1, frequency_penalty=0, best_of=1, suffix=None, logit_bias={})
    chat(http, user="u", tool_choice="auto", response_format={"type": "text"}, max_tokens=1)
    chat(http, max_tokens=1, functions=[], function_call="none", modalities=["text"])
    chat(http, max_tokens=1, audio=None, verbosity="medium", prompt_cache_retention="24h")


def test_a_prompt_past_the_context_is_refused_with_the_numbers(http: FlaskClient) -> None:
    response = http.post("/v1/completions", json={"prompt": "🦊" * 200})
    assert response.status_code == 400
    assert response.json is not None
    assert response.json["error"]["code"] == "context_length_exceeded"
    assert "512" in response.json["error"]["message"]


def test_a_prompt_past_the_context_slides_through_it_if_asked(http: FlaskClient) -> None:
    done = complete(http, prompt="🦊" * 200, truncation="slide", max_tokens=5)
    assert done["usage"]["prompt_tokens"] > 512
    assert done["usage"]["completion_tokens"] == 5
    turn = {"role": "user", "content": "🦊" * 200}
    said = chat(http, messages=[turn], truncation="slide", max_tokens=3)
    assert said["usage"]["completion_tokens"] == 3
    refused = http.post("/v1/completions", json={"prompt": "a", "truncation": "auto"})
    assert refused.status_code == 400
    assert refused.json is not None
    assert refused.json["error"]["param"] == "truncation"


def test_a_conversation_past_the_context_loses_its_oldest_turns_if_asked(
    http: FlaskClient,
) -> None:
    turn = [{"role": "user", "content": "🦊" * 30}, {"role": "assistant", "content": "🦊" * 10}]
    long = {"messages": [*turn, *turn, *turn, *turn, *HELLO], "max_tokens": 3, **GREEDY}
    for refusing in (long, {**long, "truncation": "disabled"}):
        response = http.post("/v1/chat/completions", json=refusing)
        assert response.status_code == 400
        assert response.json is not None
        assert response.json["error"]["code"] == "context_length_exceeded"
    answer = chat(http, **long, truncation="auto")
    assert answer["dropped_messages"] == 4
    rest = chat(http, **{**long, "messages": long["messages"][4:]}, truncation="auto")
    assert rest["usage"] == answer["usage"]
    assert "dropped_messages" not in rest
    streamed = http.post(
        "/v1/chat/completions", json={**long, "truncation": "auto", "stream": True}
    )
    assert {chunk["dropped_messages"] for chunk in chunks(streamed.text)} == {4}
    response = http.post("/v1/chat/completions", json={**long, "truncation": "middle"})
    assert response.status_code == 400


def test_another_model_is_not_found(http: FlaskClient) -> None:
    assert complete(http, model="fake-story")["model"] == "fake-story"
    response = http.post("/v1/completions", json={"prompt": "a", "model": "gpt-4"})
    assert response.status_code == 404
    assert response.json is not None
    assert response.json["error"]["code"] == "model_not_found"


def test_a_full_queue_asks_to_try_again(start_site: StartSite) -> None:
    site = start_site(n_slots=1, queue=0)
    site.page().hold_slot("a")
    response = site.app.test_client().post("/v1/completions", json={"prompt": "a"})
    assert response.status_code == 429
    assert int(response.headers["Retry-After"]) >= 1
    assert response.json is not None
    assert response.json["error"]["type"] == "rate_limit_error"


Heard = queue.SimpleQueue[tuple[Request, Event]]


def listen(site: Site, monkeypatch: pytest.MonkeyPatch) -> Heard:
    """Return what the site's engine will tell of the requests after this, in that order."""
    heard: Heard = queue.SimpleQueue()
    submit = site.engine.submit

    def submit_heard(request: Request, on_event: OnEvent) -> Run:
        def hear(event: Event) -> None:
            on_event(event)
            heard.put((request, event))

        return submit(request, hear)

    monkeypatch.setattr(site.engine, "submit", submit_heard)
    return heard


def next_heard(heard: Heard, kind: type[Event]) -> Request:
    """Return the request of the next event of a kind."""
    while not isinstance((told := heard.get(timeout=PATIENCE_S))[1], kind):
        pass
    return told[0]


def test_a_request_with_a_larger_priority_waits_for_the_others(
    start_site: StartSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = start_site(n_slots=1, queue=4)
    page = site.page()
    page.hold_slot("a")
    heard = listen(site, monkeypatch)

    def ask(priority: int) -> None:
        complete(site.app.test_client(), max_tokens=2, priority=priority)

    with ThreadPoolExecutor(2) as pool:
        asked = []
        for n_waiting, priority in enumerate((5, 0), 1):
            asked.append(pool.submit(ask, priority))
            wait_until_load_is(site, 1, n_waiting)
        page.stop("a")
        for each in asked:
            each.result()
    assert [next_heard(heard, Done).priority for _ in asked] == [0, 5]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_while_loading_it_asks_to_try_again(loading_site: Site, path: str) -> None:
    client = loading_site.app.test_client()
    response = client.post(path, json={"prompt": "a"})
    assert response.status_code == 503
    assert "Retry-After" in response.headers
    assert client.get("/v1/models").status_code == 503


def test_models_lists_the_one_model(http: FlaskClient) -> None:
    response = http.get("/v1/models")
    assert response.json is not None
    assert [model["id"] for model in response.json["data"]] == ["fake-story"]
    assert http.get("/v1/models/fake-story").json == response.json["data"][0]


def test_a_model_is_found_by_its_name_whatever_that_is(start_site: StartSite) -> None:
    """Names of the hub have a slash, which clients write as it is or as %2F."""
    site = start_site(loras=("crew/pirate", "a b"))
    connection = http_client(site)
    for path, name in (
        ("crew%2Fpirate", "crew/pirate"),
        ("crew/pirate", "crew/pirate"),
        ("a%20b", "a b"),
    ):
        connection.request("GET", f"/v1/models/{path}")
        found = json.loads(connection.getresponse().read())
        assert (found["id"], found["object"], found["parent"]) == (name, "model", "fake-story")
    for path in ("pirate", "crew", "crew/pirate/x", "%00"):
        connection.request("GET", f"/v1/models/{path}")
        response = connection.getresponse()
        error = json.loads(response.read())["error"]
        assert (response.status, error["code"], error["param"]) == (404, "model_not_found", "model")
        assert "'fake-story' with the adapters crew/pirate, a b" in error["message"]


def test_other_methods_and_paths_are_json_too(http: FlaskClient) -> None:
    wrong_method = http.get("/v1/completions")
    assert wrong_method.status_code == 405
    assert "POST" in wrong_method.headers["Allow"]
    for response in (wrong_method, http.get("/v1/nothing")):
        assert response.json is not None
        assert response.json["error"]["message"]


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_an_engine_that_dies_ends_an_answer_with_an_error(
    start_site: StartSite, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """The response cannot be resumed, since the server keeps none; its seed repeats the text."""
    seed = 2**64 - 7
    site: Site = start_site(process=True, hangs_with=seed)  # so the text does not end before that
    heard = listen(site, monkeypatch)
    connection = http_client(site)
    body = {"prompt": "Once", "stream": stream, "max_tokens": 400, "seed": seed}
    connection.request("POST", "/v1/completions", json.dumps(body))
    if stream:
        response = connection.getresponse()
        response.read1(10)
    next_heard(heard, Token)
    pid = getattr(site.engine, "pid", None)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    if stream:
        *_, last, end, rest = response.read().decode().split("\n\n")
        assert (end, rest) == ("data: [DONE]", "")
        error = json.loads(last.removeprefix("data: "))["error"]
    else:
        response = connection.getresponse()
        assert response.status == 503
        assert "Retry-After" in response.headers
        error = json.loads(response.read())["error"]
    assert error["code"] == "unavailable"
    assert re.fullmatch(
        r"the engine stopped \(after [1-9]\d* tokens of this answer, which the server does not "
        r"keep\); send the request again with seed 18446744073709551609 to get the same text",
        error["message"],
    )


def test_a_recommended_penalty_refuses_no_log_probabilities(
    http: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Qwen 2.5 recommends one: only a penalty that the request names is refused."""
    greedy: dict[str, Any] = {**GREEDY, "max_tokens": 40}
    plain = complete(http, **greedy)["choices"][0]["text"]
    monkeypatch.setattr(Hello, "api_defaults", SamplingParams(repetition_penalty=1.5))
    assert complete(http, **greedy)["choices"][0]["text"] != plain
    assert complete(http, **greedy, logprobs=0)["choices"][0]["text"] != plain
    assert complete(http, **greedy, logprobs=1)["choices"][0]["text"] == plain
    assert chat(http, **greedy, logprobs=True, top_logprobs=1)["choices"]
    body = {"prompt": "Once", "logprobs": 1, "repetition_penalty": 1.5}
    assert http.post("/v1/completions", json=body).status_code == 400
