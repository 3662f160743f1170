"""Texts of Text Generation Inference: its own route for plain texts, OpenAI's for chats."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from app import tale
from app.config import Settings
from app.engine_client import Tokenizer
from app.prompt.limited_tokenizer import load_tokenizer
from app.prompt.prompts import prompt_ids
from app.protocol.messages import Message
from app.upstream import engine as upstream_engine
from app.upstream.engine import UpstreamEngine
from gpu import (
    EngineError,
    Grammar,
    InvalidRequest,
    QueueFull,
    Request,
    SamplingParams,
    ScheduledUpdate,
    TokenBias,
)
from gpu.events import Done, Token
from tests.app.replicas.mortal import Written, wait_ready
from tests.app.upstream.stand_in import WORDS
from tests.app.upstream.tgi_stand_in import INFO, TgiStandIn, error, native_token

HELLO = [Message("system", "Be brief."), Message("user", "Who went home?")]
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}}
OWN_WATERMARK = {"watermark_bias": 2.0, "greenlist_ratio": 0.5}
Connect = Callable[..., UpstreamEngine]


@pytest.fixture
def tgi() -> Iterator[TgiStandIn]:
    stand_in = TgiStandIn()
    yield stand_in
    stand_in.close()


@pytest.fixture
def connect(tgi: TgiStandIn, monkeypatch: pytest.MonkeyPatch) -> Iterator[Connect]:
    """Return a function that makes a client of the stand-in."""
    monkeypatch.setattr(upstream_engine, "RETRY_SECONDS", 0.02)
    engines: list[UpstreamEngine] = []

    def connect(tokenizer: Tokenizer | None = None, **settings: Any) -> UpstreamEngine:
        engine = UpstreamEngine(Settings(upstream=tgi.url, **settings), tokenizer)
        engines.append(engine)
        engine.start()
        wait_ready(engine)
        return engine

    yield connect
    for engine in engines:
        engine.close()


def write(
    engine: UpstreamEngine, *messages: Message, grammar: Grammar | None = None, **settings: Any
) -> Written:
    """Return what a chat of `messages` brings, or without any a plain text."""
    how: dict[str, Any] = {"messages": messages} if messages else {"prompt": "Once there was"}
    written, ids = Written(), prompt_ids(engine.tokenizer, **how)
    request = Request(ids, SamplingParams(**{"seed": 3, **settings}), grammar=grammar)
    engine.submit(request, written)
    written.wait_done()
    return written


def text_of(written: Written) -> str:
    return "".join(token.text for token in written.of(Token))


def test_it_is_recognised_by_its_info(connect: Connect, tgi: TgiStandIn) -> None:
    hello = connect().hello
    assert hello is not None
    assert hello.upstream is not None
    assert hello.upstream.kind == "TGI"
    assert (hello.model.name, hello.limits.context) == (INFO["model_id"], 400)
    assert tgi.paths == ["/v1/models", "/info"]


def test_a_server_whose_info_is_another_is_not_taken_for_it(
    connect: Connect, tgi: TgiStandIn
) -> None:
    tgi.info = {"version": "1", "model_id": "acme/storyteller"}
    hello = connect().hello
    assert hello is not None
    assert hello.upstream is not None
    assert hello.upstream.kind == "OpenAI-compatible server"


# ---- plain texts -----------------------------------------------------------------------------


def test_a_plain_text_goes_to_its_own_route(connect: Connect, tgi: TgiStandIn) -> None:
    settings = {"temperature": 0.7, "top_k": 5, "top_p": 0.9, "repetition_penalty": 1.2}
    settings |= {"frequency_penalty": 0.4, "stop": ("!",), "max_tokens": 20}
    write(connect(), **settings, **OWN_WATERMARK)
    assert tgi.paths[-1] == "/generate_stream"
    assert tgi.bodies[-1] == {
        "inputs": "Once there was",
        "parameters": {
            "details": True,
            "do_sample": True,
            "seed": 3,
            "top_n_tokens": 5,
            "temperature": 0.7,
            "top_k": 5,
            "top_p": 0.9,
            "repetition_penalty": 1.2,
            "frequency_penalty": 0.4,
            "stop": ["!"],
            "max_new_tokens": 20,
            "watermark": True,
        },
    }


def test_greedy_is_without_a_temperature_and_filters(connect: Connect, tgi: TgiStandIn) -> None:
    engine = connect()
    write(engine, temperature=0.0, top_k=7, top_p=0.5, seed=0, max_tokens=9)
    parameters = tgi.bodies[-1]["parameters"]
    assert not {"do_sample", "temperature", "top_k", "top_p"} & parameters.keys()
    assert parameters["seed"] == 2**63 - 1, "0 is no seed"
    write(engine, *HELLO, temperature=0.0, top_p=0.5)
    assert tgi.bodies[-1]["temperature"] == 0
    assert "top_p" not in tgi.bodies[-1]


def test_tokens_have_what_it_told(connect: Connect) -> None:
    written = write(connect())
    tokens, (done,) = written.of(Token), written.of(Done)
    assert [token.text for token in tokens] == [*WORDS, ""]
    assert [token.eos for token in tokens] == [False] * len(WORDS) + [True]
    first = tokens[0]
    assert (first.logprob, first.rank) == (-2.5, 1)
    assert [c.text for c in first.candidates] == [" the", " a"]
    assert first.candidates[0].before == pytest.approx(math.exp(-0.1))
    assert (done.reason, done.prompt_tokens) == ("eos", 7)
    assert done.completion_tokens == len(tokens)


@pytest.mark.parametrize(
    ("settings", "param", "words"),
    [
        ({"min_p": 0.1}, "min_p", "does not know min_p; set it to 0"),
        ({"presence_penalty": 0.5}, "presence_penalty", "does not know presence_penalty"),
        ({"ignore_eos": True}, "ignore_eos", "set it to false"),
        ({"logit_bias": (TokenBias(4, 2.0),)}, "logit_bias", "leave it out"),
        ({"watermark_bias": 3.0}, "watermark_bias", "greenlist_ratio to 0.5, hashing_key to 1"),
        ({"watermark_bias": 2.0}, "watermark_bias", "only its own watermark"),
    ],
)
def test_what_it_cannot_do_is_refused_by_name(
    connect: Connect, tgi: TgiStandIn, settings: dict[str, Any], param: str, words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words) as refused:
        write(connect(), **settings)
    assert refused.value.param == param
    assert not tgi.bodies


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        ("owl", " a fox and an "),
        ("an owl w", " a fox and "),
        ("x an", " a fo"),
        (" home.", " a fox and an owl went"),
        ("homeless", "".join(WORDS)),
    ],
)
def test_stop_strings_are_no_part_of_the_text(connect: Connect, stop: str, text: str) -> None:
    """It leaves them in, and sees those only that end with a token."""
    engine = connect()
    for messages in ((), HELLO):
        written = write(engine, *messages, stop=(stop,))
        assert text_of(written) == text
        assert written.of(Done)[0].reason == ("eos" if stop == "homeless" else "stop")


def test_a_change_begins_another_stream_from_the_text_so_far(
    connect: Connect, tgi: TgiStandIn
) -> None:
    engine, written = connect(), Written()
    ids = prompt_ids(engine.tokenizer, prompt="Once")
    updates = (ScheduledUpdate(3, {"top_k": 2}),)
    engine.submit(Request(ids, SamplingParams(seed=5, max_tokens=9), updates=updates), written)
    written.wait_done()
    first, last = tgi.bodies
    assert last["inputs"] == first["inputs"] + "".join(WORDS[:3])
    found = {name: last["parameters"][name] for name in ("top_k", "seed", "max_new_tokens")}
    assert found == {"top_k": 2, "seed": 5 + 3, "max_new_tokens": 9 - 3}
    assert text_of(written) == "".join((*WORDS[:3], *WORDS[:6]))


def test_with_its_tokenizer_ids_are_the_models(connect: Connect, tgi: TgiStandIn) -> None:
    tokenizer = load_tokenizer(tale.model_dir())
    engine = connect(tokenizer)
    ids = tokenizer.encode("<|im_start|>user\nWho went home? ✨<|im_end|>\n")
    tgi.words = (" upon",)
    written = Written()
    engine.submit(Request(ids, SamplingParams(seed=1, top_k=3)), written)
    written.wait_done()
    body = tgi.bodies[-1]
    assert body["inputs"] == "<|im_start|>user\nWho went home? ✨<|im_end|>\n"
    assert body["parameters"]["top_k"] == 3
    first = written.of(Token)[0]
    assert first.id == native_token(" upon", 0)["id"]


# ---- chats -----------------------------------------------------------------------------------


def test_a_chat_goes_to_openais_route(connect: Connect, tgi: TgiStandIn) -> None:
    engine = connect()
    written = write(engine, *HELLO, temperature=0.7, top_p=0.9, stop=("!",), max_tokens=20)
    assert tgi.paths[-1] == "/v1/chat/completions"
    assert tgi.bodies[-1] == {
        "model": "tgi",
        "messages": [{"role": m.role, "content": m.content} for m in HELLO],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.7,
        "top_p": 0.9,
        "seed": 3,
        "stop": ["!"],
        "max_tokens": 20,
        "logprobs": True,
        "top_logprobs": 5,
    }
    assert text_of(written) == "".join(WORDS)
    (done,) = written.of(Done)
    assert (done.reason, done.prompt_tokens) == ("eos", 7)
    for setting in ({"top_k": 5}, {"repetition_penalty": 1.1}, OWN_WATERMARK):
        with pytest.raises(InvalidRequest, match=r"in a chat; .* --tokenizer of its model"):
            write(engine, *HELLO, **setting)


def test_grammars_that_it_knows_are_passed_on(connect: Connect, tgi: TgiStandIn) -> None:
    engine, grammar = connect(), Grammar("json_schema", json.dumps(SCHEMA))
    write(engine, grammar=grammar)
    assert tgi.bodies[-1]["parameters"]["grammar"] == {"type": "json", "value": SCHEMA}
    write(engine, *HELLO, grammar=grammar)
    assert tgi.bodies[-1]["response_format"] == {"type": "json", "value": SCHEMA}
    write(engine, *HELLO, grammar=Grammar("regex", "a|b"))
    assert tgi.bodies[-1]["response_format"] == {"type": "regex", "value": "a|b"}
    with pytest.raises(InvalidRequest, match=r"JSON schema or a regular expression .* \(TGI\)"):
        write(engine, grammar=Grammar("gbnf", 'root ::= "a"'))


# ---- errors ----------------------------------------------------------------------------------


@pytest.mark.parametrize("messages", [(), HELLO], ids=["text", "chat"])
def test_a_refusal_in_the_first_event_answers_the_request(
    connect: Connect, messages: list[Message]
) -> None:
    """It opens the stream before it looks at the request."""
    with pytest.raises(InvalidRequest, match="refuses the request: Input validation error: `stop`"):
        write(connect(), *messages, stop=tuple("abcde"))


def test_too_many_requests_are_a_full_queue(connect: Connect, tgi: TgiStandIn) -> None:
    engine = connect()
    tgi.words, tgi.tail = (), [error("Model is overloaded", "overloaded")]
    with pytest.raises(QueueFull, match="busy: Model is overloaded; try again"):
        write(engine)
    tgi.answer = lambda handler: handler.json(429, error("Model is overloaded", "overloaded"))
    with pytest.raises(QueueFull, match="busy: Model is overloaded; try again"):
        write(engine)


@pytest.mark.parametrize(
    ("tail", "words"),
    [
        ([error("CUDA out of memory", "generation")], "while it wrote: CUDA out of memory"),
        ([], "broke off"),
        ([{"token": {"id": 1}}], "sent .*text"),
    ],
)
def test_a_stream_that_fails_keeps_its_text(
    connect: Connect, tgi: TgiStandIn, tail: list[Any], words: str
) -> None:
    tgi.tail = tail
    written = write(connect())
    assert text_of(written) == "".join(WORDS)
    (done,) = written.of(Done)
    assert done.reason == "error"
    with pytest.raises(EngineError, match=words):
        raise EngineError(done.message)
