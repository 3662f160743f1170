"""The /v1 routes: what OpenAI clients send and expect."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import threading
import time
from typing import Any

import pytest
from flask.testing import FlaskClient

from app.openai.logprobs import MIN_LOGPROB
from tests.app.conftest import Site, StartSite
from tests.app.fake_tokenizer import STORY, FakeTokenizer

GREEDY = {"temperature": 0}
HELLO = [{"role": "user", "content": "Tell me a story."}]


def complete(client: FlaskClient, **fields: Any) -> dict[str, Any]:
    response = client.post("/v1/completions", json={"prompt": "Once", **fields})
    assert response.status_code == 200, response.text
    assert response.json is not None
    return response.json


def chat(client: FlaskClient, **fields: Any) -> dict[str, Any]:
    response = client.post("/v1/chat/completions", json={"messages": HELLO, **fields})
    assert response.status_code == 200, response.text
    assert response.json is not None
    return response.json


def chunks(text: str) -> list[dict[str, Any]]:
    """The messages of a stream, which must end with [DONE]."""
    lines = [line for line in text.split("\n\n") if line and not line.startswith(":")]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


# ---- completions -----------------------------------------------------------------------------


def test_a_completion(http: FlaskClient) -> None:
    answer = complete(http, **GREEDY, max_tokens=12)
    choice = answer["choices"][0]
    assert answer["object"] == "text_completion"
    assert answer["model"] == "fake-story"
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "length", None)
    assert STORY.startswith(choice["text"])
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (
        2,
        12,
        14,
    )
    assert answer["timings"]["predicted_n"] == 12
    assert answer["timings"]["predicted_per_second"] > 0


def test_tokens_found_in_the_cache_are_part_of_the_prompt(start_site: StartSite) -> None:
    answer = complete(start_site(reused=5).app.test_client(), prompt="Once upon a time, there was")
    usage, timings = answer["usage"], answer["timings"]
    n_prompt = usage["prompt_tokens"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 5, "moved_tokens": 0}
    assert usage["total_tokens"] == n_prompt + usage["completion_tokens"]
    assert (timings["cache_n"], timings["prompt_n"]) == (5, n_prompt - 5)
    assert timings["prompt_per_token_ms"] == timings["prompt_ms"] / (n_prompt - 5)


def test_without_max_tokens_sixteen_are_written(http: FlaskClient) -> None:
    assert complete(http)["usage"]["completion_tokens"] == 16


def test_a_seed_repeats_a_text_and_another_changes_it(http: FlaskClient) -> None:
    hot = {"temperature": 3, "max_tokens": 40, "top_k": 0, "top_p": 1}
    texts = [complete(http, **hot, seed=s)["choices"][0]["text"] for s in (7, 7, 8)]
    assert texts[0] == texts[1] != texts[2]


def test_the_seed_that_was_drawn_is_returned(http: FlaskClient) -> None:
    assert isinstance(complete(http)["seed"], int)
    assert complete(http, seed=2**64 - 1)["seed"] == 2**64 - 1


@pytest.mark.parametrize("stop", [" there", ["zebra", " there"]])
def test_stop_is_not_shown(http: FlaskClient, stop: Any) -> None:
    choice = complete(http, **GREEDY, max_tokens=50, stop=stop)["choices"][0]
    assert choice["text"] == STORY.partition(" there")[0]
    assert choice["finish_reason"] == "stop"


def test_the_end_of_the_text_is_a_stop(start_site: StartSite) -> None:
    client = start_site(ends=True, text="The end.").app.test_client()
    choice = complete(client, **GREEDY, max_tokens=50)["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("The end.", "stop")


def test_ids_are_taken_as_they_are(http: FlaskClient) -> None:
    ids = FakeTokenizer().encode("Once upon")
    from_ids = complete(http, **GREEDY, prompt=ids)
    from_text = complete(http, **GREEDY, prompt="Once upon")
    assert from_ids["choices"] == from_text["choices"]
    assert complete(http, prompt=["Once upon"])["usage"]["prompt_tokens"] == len(ids)


def test_echo_puts_the_prompt_first(http: FlaskClient) -> None:
    plain = complete(http, **GREEDY, prompt="A café")["choices"][0]["text"]
    ids = FakeTokenizer().encode("A café")
    for prompt in ("A café", ids):
        echoed = complete(http, **GREEDY, prompt=prompt, echo=True)["choices"][0]["text"]
        assert echoed == "A café" + plain


def test_logprobs_are_the_models_own(http: FlaskClient) -> None:
    """The same tokens at another temperature have the same log-probabilities."""
    runs = [
        complete(http, temperature=t, top_k=1, max_tokens=8, logprobs=5)["choices"][0]["logprobs"]
        for t in (1, 0.5, 2, 0)
    ]
    for lists in runs:
        assert lists["tokens"] == runs[0]["tokens"]
        assert lists["token_logprobs"] == pytest.approx(runs[0]["token_logprobs"])
        for token, logprob, top in zip(
            lists["tokens"], lists["token_logprobs"], lists["top_logprobs"], strict=True
        ):
            assert len(top) == 5
            assert top[token] == pytest.approx(logprob)
            assert logprob == max(top.values())
        for top, first in zip(lists["top_logprobs"], runs[0]["top_logprobs"], strict=True):
            assert top == pytest.approx(first, abs=1e-6)
    offsets = runs[0]["text_offset"]
    text = "".join(runs[0]["tokens"])
    assert [text[a:b] for a, b in zip(offsets, [*offsets[1:], None], strict=True)] == runs[0][
        "tokens"
    ]


def test_logprobs_zero_returns_the_chosen_token_alone(http: FlaskClient) -> None:
    logprobs = complete(http, logprobs=0, repetition_penalty=1.3)["choices"][0]["logprobs"]
    assert logprobs["top_logprobs"] is None
    assert all(MIN_LOGPROB < p <= 0 for p in logprobs["token_logprobs"])


def test_penalties_lower_what_was_written_and_biases_any_token(http: FlaskClient) -> None:
    wanted: dict[str, Any] = {**GREEDY, "max_tokens": 40, "logprobs": 0}
    plain = complete(http, **wanted)["choices"][0]["logprobs"]["tokens"]
    penalised = complete(http, **wanted, frequency_penalty=2.0, presence_penalty=2.0)
    tokens = penalised["choices"][0]["logprobs"]["tokens"]
    assert len(set(tokens)) > len(set(plain))
    assert tokens[0] == plain[0], "nothing was written before the first token"
    [first] = FakeTokenizer().encode(plain[0], bos=False)
    biased = complete(http, **wanted, logit_bias={str(first): -100})["choices"][0]
    assert plain[0] not in biased["logprobs"]["tokens"]


# ---- streams ---------------------------------------------------------------------------------


def test_a_stream_says_what_the_whole_says(http: FlaskClient) -> None:
    whole = complete(http, **GREEDY, max_tokens=160)
    response = http.post(
        "/v1/completions", json={"prompt": "Once", **GREEDY, "max_tokens": 160, "stream": True}
    )
    assert response.mimetype == "text/event-stream"
    parts = chunks(response.text)
    assert "".join(part["choices"][0]["text"] for part in parts) == whole["choices"][0]["text"]
    assert "✨" in whole["choices"][0]["text"], "a character of several tokens should be in here"
    assert [part["choices"][0]["finish_reason"] for part in parts[:-1]] == [None] * (len(parts) - 1)
    assert parts[-1]["choices"][0]["finish_reason"] == "length"
    assert len({part["id"] for part in parts}) == 1
    assert parts[-1]["timings"]["predicted_n"] == 160
    assert all("usage" not in part for part in parts)


def test_a_stream_reports_its_usage_when_asked(http: FlaskClient) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": 3}
    parts = chunks(http.post("/v1/completions", json={"prompt": "Once", **options}).text)
    assert [part["usage"] for part in parts[:-1]] == [None] * (len(parts) - 1)
    assert parts[-1]["choices"] == []
    assert parts[-1]["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("ask", [complete, chat])
def test_token_ids_are_given_if_asked_for(http: FlaskClient, ask: Any) -> None:
    """Named as by vLLM."""
    whole = ask(http, **GREEDY, max_tokens=6, return_token_ids=True)["choices"][0]
    text = whole.get("text") or whole["message"]["content"]
    assert FakeTokenizer().decode(whole["token_ids"]) == text
    path, prompt = ("completions", {"prompt": "Once"})
    if ask is chat:
        path, prompt = ("chat/completions", {"messages": HELLO})
    fields = {**prompt, **GREEDY, "max_tokens": 6, "stream": True, "return_token_ids": True}
    parts = chunks(http.post(f"/v1/{path}", json=fields).text)
    assert [id for p in parts for id in p["choices"][0]["token_ids"]] == whole["token_ids"]
    assert "token_ids" not in ask(http, **GREEDY, max_tokens=6)["choices"][0]


def test_a_stream_echoes_and_has_logprobs(http: FlaskClient) -> None:
    parts = chunks(
        http.post(
            "/v1/completions",
            json={"prompt": "Once", "stream": True, "logprobs": 2, "max_tokens": 4},
        ).text
    )
    received = [part["choices"][0]["logprobs"] for part in parts if part["choices"][0]["logprobs"]]
    assert [len(t["tokens"]) for t in received] == [1] * 4
    offsets = [t["text_offset"][0] for t in received]
    assert offsets == sorted(offsets)
    echoed = chunks(
        http.post("/v1/completions", json={"prompt": "Once", "stream": True, "echo": True}).text
    )
    assert echoed[0]["choices"][0]["text"] == "Once"


def test_text_arrives_while_it_is_written(start_site: StartSite) -> None:
    site = start_site(delay=0.05)
    connection = http.client.HTTPConnection("127.0.0.1", site.port)
    body = {"prompt": "Once", "stream": True, "max_tokens": 20}
    begun = time.monotonic()
    connection.request("POST", "/v1/completions", json.dumps(body))
    response = connection.getresponse()
    assert response.read1(50).startswith(b"data: ")
    first = time.monotonic() - begun
    response.read()
    assert first < time.monotonic() - begun - 0.5


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_cancels_its_run(start_site: StartSite, stream: bool) -> None:
    site = start_site(delay=0.02, n_slots=1, queue=0)
    connection = http.client.HTTPConnection("127.0.0.1", site.port)
    body = {"prompt": "Once", "stream": stream, "max_tokens": 500}
    connection.request("POST", "/v1/completions", json.dumps(body))
    response = connection.getresponse() if stream else None
    time.sleep(0.2)
    client = site.app.test_client()
    assert client.post("/v1/completions", json={"prompt": "a"}).status_code == 429
    connection.close()
    if response is not None:
        response.close()
    deadline = time.monotonic() + 6
    while client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}).status_code != 200:
        assert time.monotonic() < deadline, "the run of a client that left still holds its slot"
        time.sleep(0.1)


# ---- chat ------------------------------------------------------------------------------------


def test_a_chat_completion(http: FlaskClient) -> None:
    answer = chat(http, **GREEDY, max_tokens=5)
    choice = answer["choices"][0]
    assert answer["object"] == "chat.completion"
    assert choice["message"]["role"] == "assistant"
    assert STORY.startswith(choice["message"]["content"])
    assert choice["finish_reason"] == "length"


def test_chat_without_max_tokens_writes_until_the_end(start_site: StartSite) -> None:
    client = start_site(ends=True, text="A short story, of more than sixteen tokens, ends.").app
    answer = chat(client.test_client(), **GREEDY)
    assert answer["choices"][0]["message"]["content"].endswith("ends.")
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_a_chat_stream(http: FlaskClient) -> None:
    body = {"messages": HELLO, **GREEDY, "max_completion_tokens": 6, "stream": True}
    parts = chunks(http.post("/v1/chat/completions", json=body).text)
    assert parts[0]["object"] == "chat.completion.chunk"
    assert parts[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    text = "".join(part["choices"][0]["delta"].get("content", "") for part in parts)
    assert text == chat(http, **GREEDY, max_tokens=6)["choices"][0]["message"]["content"]
    assert parts[-1]["choices"][0] == {
        "index": 0,
        "delta": {},
        "logprobs": None,
        "finish_reason": "length",
    }


def test_chat_logprobs(http: FlaskClient) -> None:
    answer = chat(http, top_k=1, max_tokens=3, logprobs=True, top_logprobs=2)
    for token in answer["choices"][0]["logprobs"]["content"]:
        assert bytes(token["bytes"]).decode() == token["token"]
        assert len(token["top_logprobs"]) == 2
        assert token["top_logprobs"][0]["logprob"] == pytest.approx(token["logprob"])


def test_chat_takes_text_parts_and_developer_messages(http: FlaskClient) -> None:
    parts = [{"type": "text", "text": "Tell me "}, {"type": "text", "text": "a story."}]
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}]
    same = [{"role": "system", "content": "Be brief."}, *HELLO]
    assert (
        chat(http, messages=messages, max_tokens=1)["usage"]
        == chat(http, messages=same, max_tokens=1)["usage"]
    )


def test_chat_continues_an_answer(http: FlaskClient) -> None:
    begun = [*HELLO, {"role": "assistant", "content": "Once upon"}]
    whole = chat(http, messages=begun, max_tokens=1)
    continued = chat(http, messages=begun, max_tokens=1, continue_final_message=True)
    # Without it, the template closes the turn and opens another: two more special tokens.
    assert whole["usage"]["prompt_tokens"] == continued["usage"]["prompt_tokens"] + 2


# What the client openai 3.54 sends for `messages + [response.choices[0].message]`: an answer that
# it got from here whole, then one that it put together from a stream; and every field that its
# types give a message, at other values that say nothing.
ANSWERED = [
    {"content": "Once upon", "refusal": None, "role": "assistant"},
    {
        "content": "Once upon",
        "refusal": None,
        "role": "assistant",
        "annotations": None,
        "audio": None,
        "function_call": None,
        "tool_calls": None,
        "parsed": None,
    },
    {
        "role": "assistant",
        "content": [{"type": "text", "text": "Once upon", "prompt_cache_breakpoint": None}],
        "refusal": "",
        "annotations": [],
        "audio": None,
        "function_call": None,
        "tool_calls": [],
        "name": "tale",
    },
]


@pytest.mark.parametrize("answered", ANSWERED)
def test_an_answer_comes_back_in_the_next_turn(http: FlaskClient, answered: dict[str, Any]) -> None:
    plain = {"role": "assistant", "content": "Once upon"}
    received = [
        chat(http, messages=[*HELLO, message, *HELLO], **GREEDY, max_tokens=4)
        for message in (plain, answered)
    ]
    assert received[0]["choices"] == received[1]["choices"]
    assert received[0]["usage"] == received[1]["usage"]


def test_our_own_answer_comes_back_as_it_was_sent(http: FlaskClient) -> None:
    message = chat(http, max_tokens=4)["choices"][0]["message"]
    assert chat(http, messages=[*HELLO, message, *HELLO], max_tokens=1)["choices"]


def test_a_model_without_a_template_says_so(start_site: StartSite) -> None:
    client = start_site(chat_template=None).app.test_client()
    response = client.post("/v1/chat/completions", json={"messages": HELLO})
    assert response.status_code == 400
    assert response.json is not None
    assert "no chat template" in response.json["error"]["message"]


# ---- errors ----------------------------------------------------------------------------------

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
    "several prompts": ({"prompt": ["a", "b"]}, "prompt"),
    "mixed prompt": ({"prompt": ["a", 1]}, "prompt"),
    "id outside the vocabulary": ({"prompt": [10**6]}, "prompt"),
    "negative id": ({"prompt": [-1]}, "prompt"),
    "huge id": ({"prompt": [10**30]}, "prompt"),
    "half a character": (b'{"prompt":"\\ud83d"}', None),
    "unknown field": ({"prompt": "a", "temprature": 1}, "temprature"),
    "chat template": ({"prompt": "a", "chat_template": "{{ 1 }}"}, "chat_template"),
    "temperature below": ({"prompt": "a", "temperature": -1}, "temperature"),
    "temperature above": ({"prompt": "a", "temperature": 1e9}, "temperature"),
    "temperature text": ({"prompt": "a", "temperature": "1"}, "temperature"),
    "temperature true": ({"prompt": "a", "temperature": True}, "temperature"),
    "top_k fraction": ({"prompt": "a", "top_k": 1.5}, "top_k"),
    "top_k negative": ({"prompt": "a", "top_k": -1}, "top_k"),
    "top_p above": ({"prompt": "a", "top_p": 1.01}, "top_p"),
    "min_p below": ({"prompt": "a", "min_p": -0.5}, "min_p"),
    "penalty zero": ({"prompt": "a", "repetition_penalty": 0}, "repetition_penalty"),
    "seed negative": ({"prompt": "a", "seed": -1}, "seed"),
    "seed too large": ({"prompt": "a", "seed": 2**64}, "seed"),
    "seed much too large": ({"prompt": "a", "seed": 10**400}, "seed"),
    "max_tokens zero": ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
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
    "echo with logprobs": ({"prompt": "a", "echo": True, "logprobs": 1}, "echo"),
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
    "nested template": (
        {"messages": HELLO, "chat_template_kwargs": {"chat_template": "{{ 1 }}"}},
        "chat_template_kwargs",
    ),
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
    site = start_site(n_slots=1, queue=0, delay=0.02)
    page = site.page()
    page.send_message("generate", id="a", prompt="Once", params={"max_tokens": 200})
    page.until("token")
    response = site.app.test_client().post("/v1/completions", json={"prompt": "a"})
    assert response.status_code == 429
    assert int(response.headers["Retry-After"]) >= 1
    assert response.json is not None
    assert response.json["error"]["type"] == "rate_limit_error"


def test_a_request_with_a_larger_priority_waits_for_the_others(start_site: StartSite) -> None:
    site = start_site(n_slots=1, queue=4, delay=0.01)
    page = site.page()
    page.send_message("generate", id="a", prompt="Once", params={"max_tokens": 100})
    page.until("token")
    ended: list[int] = []

    def ask(priority: int) -> None:
        body = {"prompt": "a", "max_tokens": 2, "priority": priority}
        assert site.app.test_client().post("/v1/completions", json=body).status_code == 200
        ended.append(priority)

    clients = [threading.Thread(target=ask, args=(priority,)) for priority in (5, 0)]
    for client in clients:
        client.start()
        time.sleep(0.15)  # they wait in this order
    for client in clients:
        client.join(20)
    assert ended == [0, 5]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_while_loading_it_asks_to_try_again(start_site: StartSite, path: str) -> None:
    client = start_site(load_seconds=1.0, wait=False).app.test_client()
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


def http_client(site: Site) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", site.port)


def test_other_methods_and_paths_are_json_too(http: FlaskClient) -> None:
    wrong_method = http.get("/v1/completions")
    assert wrong_method.status_code == 405
    assert "POST" in wrong_method.headers["Allow"]
    for response in (wrong_method, http.get("/v1/nothing")):
        assert response.json is not None
        assert response.json["error"]["message"]


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_an_engine_that_dies_ends_an_answer_with_an_error(
    start_site: StartSite, stream: bool
) -> None:
    """The response cannot be resumed, since the server keeps none; its seed repeats the text."""
    site: Site = start_site(process=True, delay=0.05)
    connection = http_client(site)
    body = {"prompt": "Once", "stream": stream, "max_tokens": 400, "seed": 2**64 - 7}
    connection.request("POST", "/v1/completions", json.dumps(body))
    if stream:
        response = connection.getresponse()
        response.read1(10)
    else:
        time.sleep(1)
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
