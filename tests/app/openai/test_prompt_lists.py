"""Several prompts in one request, and log-probabilities of their tokens."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from flask.testing import FlaskClient

from gpu.inspection.requests import Losses
from tests.app.conftest import StartSite
from tests.app.fake_inspection import answer as fake_answer
from tests.app.fake_options import FakeOptions, info_of
from tests.app.fake_tokenizer import FakeTokenizer
from tests.app.openai.conftest import MODEL
from tests.app.openai.requests import chunks, complete

TEXTS = ["Once upon a time", "there was ✨ a fox", "Once"]
IDS = [FakeTokenizer().encode(text) for text in TEXTS]
HOT = {"temperature": 2.0, "top_p": 1, "seed": 5, "max_tokens": 12}


@pytest.mark.parametrize("prompts", [TEXTS, IDS], ids=["texts", "ids"])
def test_each_prompt_has_the_choices_that_it_has_alone(http: FlaskClient, prompts: Any) -> None:
    together = complete(http, **HOT, prompt=prompts, n=2, logprobs=2)
    alone = [complete(http, **HOT, prompt=prompt, n=2, logprobs=2) for prompt in prompts]
    assert [choice["index"] for choice in together["choices"]] == list(range(6))
    for i, choice in enumerate(together["choices"]):
        expected = alone[i // 2]["choices"][i % 2]
        for name in ("text", "logprobs", "finish_reason", "seed"):
            assert choice[name] == expected[name]
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert together["usage"][name] == sum(one["usage"][name] for one in alone)


def test_the_best_choices_are_those_of_each_prompt(http: FlaskClient) -> None:
    together = complete(http, **HOT, prompt=TEXTS, best_of=3, echo=True)
    alone = [complete(http, **HOT, prompt=text, best_of=3, echo=True) for text in TEXTS]
    assert [choice["text"] for choice in together["choices"]] == [
        one["choices"][0]["text"] for one in alone
    ]


def test_a_stream_of_several_prompts_says_what_the_whole_says(http: FlaskClient) -> None:
    body = {**HOT, "prompt": TEXTS, "echo": True, "logprobs": 1, "return_token_ids": True}
    whole = complete(http, **body)["choices"]
    response = http.post(
        "/v1/completions",
        json={**body, "stream": True, "stream_options": {"include_usage": True}},
    )
    parts = chunks(response.text)
    for choice in whole:
        own = [
            part["choices"][0]
            for part in parts
            if part["choices"] and part["choices"][0]["index"] == choice["index"]
        ]
        assert "".join(part["text"] for part in own) == choice["text"]
        lists = [part["logprobs"] for part in own if part["logprobs"]]
        for name, values in choice["logprobs"].items():
            assert [value for part in lists for value in part[name]] == values
    assert parts[-1]["usage"] == complete(http, **body)["usage"]


@pytest.mark.parametrize("n_top", [0, 3])
def test_an_echo_has_the_log_probabilities_of_the_prompt(http: FlaskClient, n_top: int) -> None:
    info, tokenizer = info_of(FakeOptions()), FakeTokenizer()
    answer = complete(http, prompt=TEXTS, echo=True, logprobs=n_top, max_tokens=2)
    for choice, text, ids in zip(answer["choices"], TEXTS, IDS, strict=True):
        lists = choice["logprobs"]
        n = len(ids)
        assert lists["tokens"][:n] == [tokenizer.piece(id) for id in ids]
        assert {len(values) for values in lists.values() if values} == {n + 2}
        losses = fake_answer(Losses(ids, max(1, n_top)), info)
        assert lists["token_logprobs"][0] is None, "nothing is before it"
        assert lists["token_logprobs"][1:n] == losses["logprob"].tolist()
        assert choice["text"].startswith(text)
        for token, at in list(zip(lists["tokens"], lists["text_offset"], strict=True))[n:]:
            assert choice["text"][at : at + len(token)] == token
        if not n_top:
            assert lists["top_logprobs"] is None
            continue
        assert lists["top_logprobs"][0] is None
        for token, own, top in list(
            zip(lists["tokens"], lists["token_logprobs"], lists["top_logprobs"], strict=True)
        )[1:]:
            assert top[token] == own
            assert len(top) <= n_top + 1


def test_offsets_are_places_in_the_text(http: FlaskClient) -> None:
    for prompt in (TEXTS[1], IDS[1]):
        (choice,) = complete(http, prompt=prompt, echo=True, logprobs=0, max_tokens=0)["choices"]
        lists = choice["logprobs"]
        for token, at in zip(lists["tokens"], lists["text_offset"], strict=True):
            if len(token) > 1 and token != "<s>":  # the fake tokenizer's bytes share a place
                assert choice["text"][at : at + len(token)] == token


def test_no_tokens_can_be_asked_for(http: FlaskClient) -> None:
    for n in (1, 2):
        answer = complete(http, prompt=TEXTS, max_tokens=0, n=n)
        assert [choice["text"] for choice in answer["choices"]] == [""] * 3 * n
        assert {choice["finish_reason"] for choice in answer["choices"]} == {"length"}
        n_prompt = sum(map(len, IDS))
        assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] == n_prompt
    echoed = complete(http, prompt=TEXTS, max_tokens=0, echo=True, logprobs=1)
    longer = complete(http, prompt=TEXTS, max_tokens=1, echo=True, logprobs=1)
    for none, one in zip(echoed["choices"], longer["choices"], strict=True):
        for name, values in none["logprobs"].items():
            assert values == one["logprobs"][name][: len(values)]
    assert [choice["text"] for choice in echoed["choices"]] == TEXTS


def test_a_prompt_of_one_token_has_nothing_to_predict(http: FlaskClient) -> None:
    (choice,) = complete(http, prompt=[7], max_tokens=0, echo=True, logprobs=2)["choices"]
    assert choice["logprobs"]["token_logprobs"] == choice["logprobs"]["top_logprobs"] == [None]


def test_more_prompts_than_one_client_may_have_runs_take_turns(start_site: StartSite) -> None:
    client = start_site(n_slots=1, queue=1).app.test_client()
    answer = complete(client, prompt=TEXTS * 5, max_tokens=2, seed=1)
    assert len(answer["choices"]) == 15
    assert {choice["finish_reason"] for choice in answer["choices"]} == {"length"}


def test_an_adapter_acts_on_the_log_probabilities(start_site: StartSite) -> None:
    site = start_site(loras=("pirate",))
    asked: list[Any] = []
    inspect = site.engine.inspect
    site.engine.inspect = lambda question, asker=0: (  # type: ignore[method-assign]
        asked.append(question) or inspect(question, asker)
    )
    complete(site.app.test_client(), model="pirate", echo=True, logprobs=1, max_tokens=0)
    assert [span.interventions.loras[0].name for span in asked[0].spans] == ["pirate"]


# ---- the bundled model -----------------------------------------------------------------------


def test_what_a_model_wrote_has_the_same_log_probabilities_as_a_prompt(
    client: openai.OpenAI,
) -> None:
    prompts = ["Once upon a time", "Tom and Mia"]
    options = {"return_token_ids": True}
    written = client.completions.create(
        model=MODEL, prompt=prompts, max_tokens=20, logprobs=3, temperature=0, echo=True,
        extra_body=options,
    )  # fmt: skip
    texts = [json.loads(choice.model_dump_json()) for choice in written.choices]
    lists = [choice["logprobs"] for choice in texts]
    ids = [
        [*json_ids(client, prompt), *choice["token_ids"]]
        for prompt, choice in zip(prompts, texts, strict=True)
    ]
    read = client.completions.create(model=MODEL, prompt=ids, max_tokens=0, logprobs=3, echo=True)
    for before, choice in zip(lists, read.choices, strict=True):
        after = choice.logprobs
        assert after is not None
        assert after.tokens == before["tokens"]
        assert after.token_logprobs is not None
        assert after.token_logprobs[1:] == pytest.approx(before["token_logprobs"][1:], abs=1e-3)
        own = list(zip(before["token_logprobs"], before["top_logprobs"], strict=True))[-20:]
        assert all(value == max(top.values()) for value, top in own), "greedy, as lm_eval reads it"


def json_ids(client: openai.OpenAI, text: str) -> list[int]:
    root = str(client.base_url).removesuffix("/v1/")
    answer = client.post(f"{root}/tokenize", body={"prompt": text}, cast_to=object)
    return answer["tokens"]  # type: ignore[no-any-return, index]
