"""The /v1 routes: what OpenAI clients send and expect."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from flask.testing import FlaskClient

from app.openai.completion_format import WholeChoice
from app.openai.logprobs import MIN_LOGPROB, top_logprobs
from gpu.events import Allowed, CandidateText, StepTimes, Token, Watermark
from gpu.reference.sampler import sample_token
from gpu.reference.softmax import log_softmax
from gpu.sampling_params import SamplingParams
from gpu.step import Sample
from tests.app.conftest import StartSite, wait_until_load_is
from tests.app.fake_tokenizer import EOS, STORY, FakeTokenizer
from tests.app.openai.requests import GREEDY, HELLO, chat, chunks, complete, http_client

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


@pytest.mark.parametrize(("logprobs", "keeps"), [(None, False), (0, False), (2, True)])
def test_candidates_are_kept_only_for_answers_that_tell_some(
    http: FlaskClient, monkeypatch: pytest.MonkeyPatch, logprobs: int | None, keeps: bool
) -> None:
    """They are most of the bytes of a token, and a request may write millions of those."""
    written: list[WholeChoice] = []

    def whole_choice(*fields: Any) -> WholeChoice:
        written.append(WholeChoice(*fields))
        return written[-1]

    monkeypatch.setattr("app.openai.completion_answers.WholeChoice", whole_choice)
    complete(http, max_tokens=4, logprobs=logprobs, n=2)
    kept = [bool(token.candidates) for choice in written for token in choice.tokens]
    assert kept == [keeps] * 8


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


def test_completions_score_the_token_that_ends_the_text(start_site: StartSite) -> None:
    """lm-evaluation-harness sums `token_logprobs[n_context:-1]`: the last is that of the token
    written after the continuation, whichever it is."""
    tokenizer = FakeTokenizer()
    ids, story = tokenizer.encode("Once upon"), tokenizer.encode("The", bos=False)
    client = start_site(ends=True, text="The").app.test_client()
    for n in range(1, len(story) + 2):
        fields = {**GREEDY, "prompt": ids, "max_tokens": n, "return_token_ids": True}
        choice = complete(client, **fields, logprobs=1, echo=True)["choices"][0]
        assert choice["token_ids"] == [*story, EOS][:n]
        lists = choice["logprobs"]
        assert {len(found) for found in lists.values()} == {len(ids) + n}
        assert lists["top_logprobs"][-1][lists["tokens"][-1]] == lists["token_logprobs"][-1]
    assert choice["text"] == "Once uponThe"


@pytest.mark.parametrize("ask", [complete, chat])
def test_a_stream_has_the_token_that_ends_the_text_in_its_last_chunk(
    start_site: StartSite, ask: Any
) -> None:
    client = start_site(ends=True, text="The end.").app.test_client()
    fields: dict[str, Any] = {**GREEDY, "max_tokens": 50, "return_token_ids": True}
    path, prompt, told = "completions", {"prompt": "Once", "logprobs": 0}, "tokens"
    if ask is chat:
        path, prompt, told = "chat/completions", {"messages": HELLO, "logprobs": True}, "content"
    whole = ask(client, **fields, **prompt)["choices"][0]
    answer = client.post(f"/v1/{path}", json={**fields, **prompt, "stream": True})
    parts = [part["choices"][0] for part in chunks(answer.text)]
    assert whole["token_ids"][-1] == EOS
    assert [id for part in parts for id in part["token_ids"]] == whole["token_ids"]
    assert parts[-1]["token_ids"] == [EOS]
    assert parts[-1]["finish_reason"] == whole["finish_reason"] == "stop"
    streamed = [entry for part in parts for entry in (part["logprobs"] or {told: []})[told]]
    assert streamed == whole["logprobs"][told]
    # OpenAI's chat completions do not list it.
    assert len(streamed) == len(whole["token_ids"]) - (ask is chat)
    assert (parts[-1]["logprobs"] is None) == (ask is chat)


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
        for t in (1, 0.5, 2, 0, 1e-5)  # the last is greedy, too
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


@pytest.mark.parametrize("temperature", [0.0, 1.0, 2.0])
def test_a_watermark_changes_no_log_probabilities(temperature: float) -> None:
    """Nor where it chose a token that is none of the candidates, whose probabilities are told."""
    rng = np.random.default_rng(5)
    allowed = rng.random(400) < 0.8
    outside = 0
    for seed in range(40):
        params = SamplingParams(temperature=temperature, watermark_bias=5.0, seed=seed)
        logits, green = rng.normal(0.0, 1.5, 400), rng.random(400) < 0.05
        sample = Sample.of(params, row=0, slot=0, index=0)
        drawn = sample_token(logits, [], sample, allowed, green)
        token = Token(
            0, drawn.id, "", drawn.logprob, drawn.probability, drawn.rank, drawn.n_kept, drawn.draw,
            drawn.mass,
            tuple(CandidateText(one.id, "", *one[1:]) for one in drawn.candidates),
            StepTimes(0.0, None, 0.0, 0.0, 0.0),
            0,
            allowed=Allowed(int(allowed.sum()), drawn.allowed),
            watermark=Watermark(bool(green[drawn.id]), drawn.green),
        )  # fmt: skip
        outside += token.id not in {one.id for one in token.candidates}
        own = log_softmax(logits)
        for id, _, logprob in top_logprobs(token, params, 5):
            assert logprob == pytest.approx(own[id], abs=1e-5)
    assert outside > 5


@pytest.mark.parametrize("n", [1, 2, 5])
def test_the_sampled_token_is_always_among_the_likeliest(http: FlaskClient, n: int) -> None:
    """As the official client documents: "there may be up to logprobs+1 elements"."""
    hot = {"temperature": 3.0, "top_p": 1, "max_tokens": 40, "seed": 3, "logprobs": n}
    lists = complete(http, **hot)["choices"][0]["logprobs"]
    for token, own, top in zip(
        lists["tokens"], lists["token_logprobs"], lists["top_logprobs"], strict=True
    ):
        assert top[token] == own
        assert len(top) <= n + 1
    assert any(len(top) == n + 1 for top in lists["top_logprobs"]), "some are less likely"


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
    site = start_site(delay=0.1)  # 48 seconds for the text
    connection = http_client(site)
    body = {"prompt": "Once", "stream": True, "max_tokens": 480}
    connection.request("POST", "/v1/completions", json.dumps(body))
    response = connection.getresponse()
    assert response.read1(50).startswith(b"data: ")
    assert site.engine.stats is not None
    assert site.engine.stats.n_running == 1
    response.close()
    connection.close()


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_cancels_its_run(start_site: StartSite, stream: bool) -> None:
    site = start_site(delay=0.1, n_slots=1, queue=0)  # 48 seconds for the text
    connection = http_client(site)
    body = {"prompt": "Once", "stream": stream, "max_tokens": 480}
    connection.request("POST", "/v1/completions", json.dumps(body))
    response = connection.getresponse() if stream else None
    wait_until_load_is(site, 1, 0)
    client = site.app.test_client()
    assert client.post("/v1/completions", json={"prompt": "a"}).status_code == 429
    connection.close()
    if response is not None:
        response.close()
    wait_until_load_is(site, 0, 0)
    complete(client, max_tokens=1)


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
    as_vllm_wants_it = {"continue_final_message": True, "add_generation_prompt": False}
    same = chat(http, messages=begun, max_tokens=1, **as_vllm_wants_it)
    assert same["usage"]["prompt_tokens"] == continued["usage"]["prompt_tokens"]


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


def test_a_message_may_say_that_it_is_one(http: FlaskClient) -> None:
    """lm-evaluation-harness writes "text" into each."""
    plain = chat(http, **GREEDY, max_tokens=4)
    for kind in ("text", "message"):
        typed = chat(http, messages=[{**HELLO[0], "type": kind}], **GREEDY, max_tokens=4)
        assert typed["choices"] == plain["choices"]
    body = {"messages": [{**HELLO[0], "type": "item_reference"}]}
    assert http.post("/v1/chat/completions", json=body).status_code == 400
