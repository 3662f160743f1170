"""The official `openai` client against the server, with its own types and errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.app.conftest import Site, StartSite, wait_until_load_is

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Tell me a story."}]
MODEL = "fake-story"


@pytest.fixture
def site(start_site: StartSite) -> Site:
    return start_site()


@pytest.fixture
def client(site: Site) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{site.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).object == "model"


def test_a_chat_answer_and_its_stream_are_the_same(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=HELLO, seed=3, max_tokens=12)
    stream = client.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        seed=3,
        max_tokens=12,
        stream=True,
        stream_options={"include_usage": True},
    )
    text, usage = "", None
    for chunk in stream:
        usage = chunk.usage or usage
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    assert whole.usage is not None
    assert usage is not None
    assert usage.completion_tokens == whole.usage.completion_tokens == 12


def test_choices(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=HELLO, n=3, seed=1, max_tokens=8, temperature=1.2
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in answer.choices}) == 3


def test_best_of(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt="Once", best_of=4, max_tokens=5)
    assert answer.usage is not None
    assert (len(answer.choices), answer.usage.completion_tokens) == (1, 20)


def test_logprobs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=4, logprobs=True, top_logprobs=3, temperature=0
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    for entry in logprobs.content:
        assert entry.logprob == pytest.approx(entry.top_logprobs[0].logprob)
        assert len(entry.top_logprobs) == 3


def test_stop(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt="Once", temperature=0, max_tokens=60, stop=[" fox"]
    )
    assert answer.choices[0].finish_reason == "stop"
    assert " fox" not in answer.choices[0].text


def test_penalties_and_logit_bias(client: openai.OpenAI) -> None:
    def write(**settings: Any) -> str:
        answer = client.completions.create(
            model=MODEL, prompt="Once", temperature=0, max_tokens=40, **settings
        )
        return str(answer.choices[0].text)

    plain = write()
    assert write(frequency_penalty=0, presence_penalty=0, logit_bias={}) == plain
    assert write(frequency_penalty=1.5) != plain
    assert write(presence_penalty=1.5) != plain
    assert write(logit_bias={"300": 100}) != plain


def test_extensions_pass_through_extra_body(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt="Once", max_tokens=5, extra_body={"top_k": 1, "repetition_penalty": 1.1}
    )
    assert answer.model_extra is not None
    assert answer.model_extra["timings"]["predicted_n"] == 5


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"n": 99}, "n"),
        ({"logit_bias": {"5": 200}}, "logit_bias"),
        ({"frequency_penalty": 3}, "frequency_penalty"),
    ],
)
def test_a_bad_request_is_typed_and_names_the_field(
    client: openai.OpenAI, fields: dict[str, object], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=HELLO, **fields)  # type: ignore[call-overload]
    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"


def test_another_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-4o", messages=HELLO)
    assert caught.value.code == "model_not_found"


def test_a_full_queue_is_a_rate_limit(start_site: StartSite) -> None:
    site = start_site(n_slots=1, queue=0)
    site.page().hold_slot("a")
    with (
        openai.OpenAI(base_url=f"{site.url}/v1", api_key="none", max_retries=0) as client,
        pytest.raises(openai.RateLimitError) as caught,
    ):
        client.completions.create(model=MODEL, prompt="Once")
    assert caught.value.response.headers["Retry-After"]


def test_a_closed_stream_cancels_its_run(start_site: StartSite) -> None:
    site = start_site(delay=0.1, n_slots=1, queue=0)  # 48 seconds for the text
    with openai.OpenAI(base_url=f"{site.url}/v1", api_key="none", max_retries=0) as client:
        stream = client.completions.create(model=MODEL, prompt="Once", max_tokens=480, stream=True)
        next(iter(stream))
        stream.close()
        wait_until_load_is(site, 0, 0)
        client.completions.create(model=MODEL, prompt="a", max_tokens=1)


def test_an_answer_in_another_turn(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=5)
    sent_back = answer.choices[0].message.model_dump()
    again = client.chat.completions.create(
        model=MODEL, messages=[*HELLO, sent_back, HELLO[0]], max_tokens=5
    )
    assert again.choices[0].message.role == "assistant"
