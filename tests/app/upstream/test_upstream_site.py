"""Our own server as the upstream of another: the page and the API in front of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import openai
import pytest

from app import tale
from app.config import Settings
from app.engine.loading import load_engine
from app.http.errors import body_of
from app.models.model_source import ModelSource
from app.prompt.limited_tokenizer import load_tokenizer
from app.upstream.dialect import MAX_LOGPROBS
from app.upstream.engine import UpstreamEngine
from tests.app.conftest import Site, StartSite
from tests.app.fake_tokenizer import EOS, FakeTokenizer
from tests.app.openai.requests import chunks
from tests.app.upstream.stand_in import WORDS, Handler, StandIn

HELLO = [{"role": "user", "content": "Tell me a story."}]
Front = Callable[..., Site]


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    stand_in = StandIn()
    yield stand_in
    stand_in.close()


@pytest.fixture
def front(start_site: StartSite) -> Front:
    """Return a function that starts a server in front of another one."""

    def start(behind: Site | StandIn, tokenizer: Any = None, **settings: Any) -> Site:
        options = Settings(upstream=behind.url, **settings)
        return start_site(client=UpstreamEngine(options, tokenizer), settings=options)

    return start


@pytest.fixture
def bundled(start_site: StartSite) -> Site:
    """The bundled model behind HTTP."""
    load = partial(
        load_engine, Settings(weight_cache=0, context=256), ModelSource(tale.model_dir())
    )
    site = start_site(load=load, wait=False)
    site.engine.tokenizer = load_tokenizer(tale.model_dir())
    site.page().drop()
    return site


def tokens_of(site: Site, **message: Any) -> list[dict[str, Any]]:
    """Return the token events of a generation that the page of `site` asks for."""
    page = site.page()
    page.send_message("generate", id="a", capture=False, **message)
    done = page.until("done", timeout=60)
    assert done["reason"] in ("length", "eos"), done
    events = [message["event"] for message in page.events("a")]
    page.drop()
    return [event for event in events if event["type"] == "token"]


def test_texts_ids_and_logprobs_are_those_of_the_model_itself(bundled: Site, front: Front) -> None:
    site = front(bundled, load_tokenizer(tale.model_dir()))
    ask: dict[str, Any] = {"prompt": "Once upon a time there was a fox who"}
    for params in (
        {"temperature": 0, "max_tokens": 40},
        {"temperature": 0.9, "seed": 2**63 + 5, "max_tokens": 40, "min_p": 0.02},
        {"temperature": 1.1, "seed": 4, "max_tokens": 24, "frequency_penalty": 0.4},
    ):
        direct, there = (tokens_of(each, **ask, params=params) for each in (bundled, site))
        direct = [token for token in direct if not token["eos"]]
        assert len(direct) >= 20
        for name in ("index", "id", "text", "logprob"):
            assert [t[name] for t in there] == [t[name] for t in direct]
        if "frequency_penalty" not in params:
            ranks = [t["rank"] for t in direct]
            assert [t["rank"] for t in there] == [n if n < MAX_LOGPROBS else None for n in ranks]
            best = [t["candidates"][0]["id"] for t in there]
            assert best == [t["candidates"][0]["id"] for t in direct]

    ids = bundled.engine.tokenizer.encode(ask["prompt"])
    params = {"temperature": 0, "max_tokens": 30}
    whole = [token["id"] for token in tokens_of(bundled, ids=ids, params=params)]
    ids += whole[:10]
    rest = tokens_of(site, ids=ids, written=10, params={**params, "max_tokens": 20})
    assert [token["id"] for token in rest] == whole[10:], "a branch goes on from its ids"


def test_without_its_tokenizer_texts_are_the_same(start_site: StartSite, front: Front) -> None:
    behind = start_site()
    site = front(behind)
    recommended = behind.engine.require_ready().defaults
    assert recommended.top_k > 0
    for params in ({"temperature": 0}, {"temperature": 4.0, "seed": 3, "top_k": 0}):
        for ask in ({"messages": HELLO}, {"prompt": "Once upon a time"}):
            ask |= {"params": {**params, "max_tokens": 40}}
            texts = ["".join(t["text"] for t in tokens_of(each, **ask)) for each in (behind, site)]
            assert texts[0] == texts[1] != ""


def test_an_answer_is_continued_as_a_message(start_site: StartSite, front: Front) -> None:
    site = front(start_site())
    params = {"temperature": 0, "max_tokens": 12}
    begun = [*HELLO, {"role": "assistant", "content": "Once upon"}]
    assert tokens_of(site, messages=begun, continue_final=True, params=params)


def test_a_token_with_half_a_character_keeps_its_bytes(start_site: StartSite, front: Front) -> None:
    behind = start_site(text="✨🦊")
    site = front(behind, FakeTokenizer())
    params = {"temperature": 0, "max_tokens": 7}
    direct, there = (tokens_of(s, messages=HELLO, params=params) for s in (behind, site))
    assert [t["id"] for t in direct] == [t["id"] for t in there]
    assert [t["text"] for t in there] == ["", "", "✨", "", "", "", "🦊"]


def test_the_page_is_told_what_it_cannot_have(start_site: StartSite, front: Front) -> None:
    site = front(start_site())
    page = site.page()
    hello = next(m for m in page.messages if m["type"] == "hello")
    upstream = hello["upstream"]
    assert upstream["kind"] == "Tokenglass"
    lacks = {lack["name"]: lack["why"] for lack in upstream["lacks"]}
    assert {"layers", "attention", "lens", "cache", "weights", "plan", "tokens"} <= set(lacks)
    assert all(why.startswith("The upstream server does not expose") for why in lacks.values())
    question = {"kind": "cache"}
    page.send_message("inspect", request=1, question=question)
    assert page.until("error", request=1)["message"] == lacks["cache"]
    response = site.app.test_client().get(
        "/api/weights", headers={"Host": f"127.0.0.1:{site.port}"}
    )
    assert response.status_code == 503
    assert behind_url(site) in response.get_json()["error"]["message"]


def behind_url(site: Site) -> str:
    hello = site.engine.require_ready()
    assert hello.upstream is not None
    return hello.upstream.url


@pytest.fixture
def client(start_site: StartSite, front: Front) -> Iterator[openai.OpenAI]:
    site = front(start_site())
    with openai.OpenAI(base_url=f"{site.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_openai_clients_are_served(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="fake-story",
        messages=HELLO,  # type: ignore[arg-type]
        max_tokens=8,
        temperature=0,
        logprobs=True,
        top_logprobs=3,
        n=2,
        extra_body={"return_token_ids": True},
    )
    first = answer.choices[0]
    assert first.message.content == answer.choices[1].message.content
    assert first.finish_reason == "length"
    assert first.logprobs is not None
    assert first.logprobs.content is not None
    tokens = first.logprobs.content
    assert "".join(token.token for token in tokens) == first.message.content
    assert tokens[0].top_logprobs[0].logprob == pytest.approx(tokens[0].logprob)
    assert len(first.model_extra["token_ids"]) == 8  # type: ignore[index]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16


def test_tools_are_described_in_the_system_message(client: openai.OpenAI) -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    given = {"model": "fake-story", "messages": HELLO, "max_tokens": 4}
    plain = client.chat.completions.create(**given)  # type: ignore[call-overload]
    told = client.chat.completions.create(**given, tools=[tool])  # type: ignore[call-overload]
    assert told.usage.prompt_tokens > plain.usage.prompt_tokens + 50


def test_the_end_of_a_text_is_its_end(start_site: StartSite, front: Front) -> None:
    behind = start_site(text="The end.", ends=True)
    site = front(behind, FakeTokenizer())
    page = site.page()
    page.send_message("generate", id="a", messages=HELLO, params={"temperature": 0})
    assert page.until("done")["reason"] == "eos"
    assert page.text("a") == "The end."
    *_, last = [m["event"] for m in page.events("a") if m["event"]["type"] == "token"]
    assert (last["id"], last["text"], last["eos"]) == (EOS, "", True), "as from an engine"


@pytest.mark.parametrize("text", [{"content": "Once upon a time"}, {"tokens": [1, 2, 3]}])
def test_no_watermark_is_looked_for_without_the_vocabulary(
    start_site: StartSite, front: Front, text: dict[str, Any]
) -> None:
    answer = front(start_site()).app.test_client().post("/watermark", json=text)
    assert answer.status_code == 400
    assert "--tokenizer" in answer.get_json()["error"]["message"]


@pytest.mark.parametrize("fields", [{}, {"dimensions": 256}])
def test_embeddings_are_to_be_asked_for_at_the_upstream(
    front: Front, stand_in: StandIn, fields: dict[str, Any]
) -> None:
    client = front(stand_in).app.test_client()
    response = client.post("/v1/embeddings", json={"input": "a fox", **fields})
    assert (response.status_code, response.json) == (
        400,
        body_of(
            f"embeddings are not passed on to an upstream server; ask for them at {stand_in.url}",
            400,
            code="invalid_request",
        ),
    )


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_log_probabilities_that_an_upstream_does_not_give_are_null(
    front: Front, stand_in: StandIn, path: str
) -> None:
    stand_in.answer = lambda handler: handler.stream(WORDS, logprobs=False)
    http = front(stand_in).app.test_client()
    body: dict[str, Any] = {"prompt": "Once", "logprobs": 0, "best_of": 2}
    if path != "completions":
        body = {"messages": HELLO, "logprobs": True}
    whole = http.post(f"/v1/{path}", json=body)
    assert whole.status_code == 200
    assert "NaN" not in whole.text
    assert whole.get_json()["choices"][0]["logprobs"] is None
    body.pop("best_of", None)
    parts = chunks(http.post(f"/v1/{path}", json={**body, "stream": True}).text)
    assert len(parts) > len(WORDS)
    assert [part["choices"][0]["logprobs"] for part in parts] == [None] * len(parts)


def test_best_of_takes_unknown_log_probabilities_last(front: Front, stand_in: StandIn) -> None:
    def answer(handler: Handler) -> None:
        if len(stand_in.bodies) == 1:
            handler.stream([" owl"], logprobs=False)
        else:
            handler.stream([" fox"])

    stand_in.answer = answer
    http = front(stand_in).app.test_client()
    body = {"prompt": "A", "best_of": 2, "logprobs": 0, "max_tokens": 1}
    [choice] = http.post("/v1/completions", json=body).get_json()["choices"]
    assert choice["text"] == " fox"
    assert choice["logprobs"]["token_logprobs"] == [-0.25]
