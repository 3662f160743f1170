"""Texts of an upstream: what is sent there, what the page gets of it, and what may go wrong."""

from __future__ import annotations

import http.client
import json
import math
import re
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from app.config import UPSTREAM_KEY, Settings, SettingsError
from app.engine_client import UnavailableError
from app.prompt.prompts import prompt_ids
from app.protocol.messages import Message
from app.server import _StatusPrinter, serve
from app.upstream import engine as upstream_engine
from app.upstream.address import Address
from app.upstream.engine import UpstreamEngine
from app.upstream.tokenizer import FIRST_WORD, WordTokenizer
from app.upstream.transport import HttpExchange
from gpu import (
    ENDED_IN_PAUSE,
    Grammar,
    Interventions,
    InvalidRequest,
    LayerFactor,
    PaceChange,
    QueueFull,
    Request,
    SamplingParams,
    ScheduledUpdate,
    TokenBias,
)
from gpu.events import Accepted, Done, Event, Prefill, Token, Updated
from gpu.inspection.requests import LogitLens
from tests.app.page import PATIENCE_S, wait_until
from tests.app.replicas.mortal import Written, wait_ready
from tests.app.upstream.stand_in import WORDS, Handler, StandIn

STORY = "".join(WORDS)
HELLO = [Message("system", "Be brief."), Message("user", "Who went home?\n<|end|>")]
Connect = Callable[..., UpstreamEngine]


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    stand_in = StandIn()
    yield stand_in
    stand_in.close()


@pytest.fixture
def connect(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> Iterator[Connect]:
    """Return a function that makes a client of the stand-in; `kind` is what that says it is."""
    monkeypatch.setattr(upstream_engine, "RETRY_SECONDS", 0.02)
    engines: list[UpstreamEngine] = []

    def connect(kind: str = "somebody", wait: bool = True, **settings: Any) -> UpstreamEngine:
        stand_in.models["data"][0]["owned_by"] = kind
        engine = UpstreamEngine(Settings(**{"upstream": stand_in.url, **settings}))
        engines.append(engine)
        engine.start()
        if wait:
            wait_ready(engine)
        return engine

    yield connect
    for engine in engines:
        engine.close()


def chat(engine: UpstreamEngine, *messages: Message) -> list[int]:
    return prompt_ids(engine.tokenizer, messages=messages or HELLO)


def text(engine: UpstreamEngine, prompt: str = "Once there was") -> list[int]:
    return prompt_ids(engine.tokenizer, prompt=prompt)


def write(engine: UpstreamEngine, ids: list[int], **settings: Any) -> Written:
    written = Written()
    engine.submit(Request(ids, SamplingParams(**settings)), written)
    written.wait_done()
    return written


def words_of(written: Written) -> list[str]:
    return [token.text for token in written.of(Token)]


# ---- what is sent, and what comes ------------------------------------------------------------


def test_a_conversation_is_sent_as_messages(connect: Connect, stand_in: StandIn) -> None:
    engine = connect()
    written = write(engine, chat(engine), temperature=0.5, max_tokens=20, seed=3)
    assert stand_in.paths[-1] == "/v1/chat/completions"
    body = stand_in.bodies[-1]
    assert body["messages"] == [{"role": m.role, "content": m.content} for m in HELLO]
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("stand-in", 0.5, 20)
    assert (body["seed"], body["stream"], body["top_logprobs"]) == (3, True, 20)
    assert "top_p" not in body
    assert words_of(written) == list(WORDS)
    assert engine.tokenizer.decode([token.id for token in written.of(Token)]) == STORY


def test_a_plain_text_is_sent_as_a_prompt(connect: Connect, stand_in: StandIn) -> None:
    engine = connect()
    written = write(engine, text(engine, "Once  there was <|a\u00e9 ✨"), top_p=0.9, stop=("x",))
    body = stand_in.bodies[-1]
    assert stand_in.paths[-1] == "/v1/completions"
    assert body["prompt"] == "Once  there was <|a\u00e9 ✨"
    assert (body["top_p"], body["stop"], body["logprobs"]) == (0.9, ["x"], 5)
    assert "".join(words_of(written)) == STORY


@pytest.mark.parametrize(("kind", "knows"), [("vllm", True), ("somebody", False)])
def test_the_salt_of_the_prefix_cache_is_sent_to_servers_that_know_it(
    connect: Connect, stand_in: StandIn, kind: str, knows: bool
) -> None:
    engine, written = connect(kind), Written()
    engine.submit(Request(text(engine), SamplingParams(), cache_salt="mine"), written)
    written.wait_done()
    assert stand_in.bodies[-1].get("cache_salt") == ("mine" if knows else None)


def test_events_have_what_was_told_and_nothing_else(connect: Connect, stand_in: StandIn) -> None:
    engine = connect()
    usage = {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}
    stand_in.answer = lambda handler: handler.stream(WORDS, usage=usage, delay=0.005)
    written = write(engine, chat(engine), seed=8)
    assert [type(event) for event in written.events[:2]] == [Accepted, Prefill]
    first = written.of(Token)[0]
    assert (first.logprob, first.rank, first.text) == (-2.5, 1, " a")
    assert [c.text for c in first.candidates] == [" the", " a"]
    assert first.candidates[0].before == pytest.approx(math.exp(-0.1))
    assert first.candidates[1].id == first.id
    told = (first.probability, first.n_kept, first.draw, first.mass, first.candidates[0].after)
    assert told == (None,) * 5
    assert max(token.times.interval for token in written.of(Token)[1:]) >= 4
    done = written.of(Done)[0]
    assert (done.reason, done.prompt_tokens, done.completion_tokens) == ("eos", 9, len(WORDS))
    assert (done.timings.cache_n, done.timings.prompt_n) == (4, 5)


def test_timings_of_llama_server_are_handed_on(connect: Connect, stand_in: StandIn) -> None:
    def answer(handler: Handler) -> None:
        handler.begin_stream()
        handler.send_event({"choices": [handler.choice("Hi", True)]})
        end = {"choices": [{"finish_reason": "stop"}]}
        handler.send_event({**end, "timings": {"prompt_ms": 12.5, "predicted_n": 1, "new": "x"}})
        handler.send_event(b"[DONE]")

    stand_in.answer = answer
    engine = connect("llamacpp")
    timings = write(engine, chat(engine)).of(Done)[0].timings
    assert timings.prompt_ms == 12.5


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("vllm", {"top_k": 5, "repetition_penalty": 1.2, "return_token_ids": True}),
        ("llamacpp", {"top_k": 5, "repeat_penalty": 1.2}),
    ],
)
def test_settings_have_the_names_of_the_upstream(
    connect: Connect, stand_in: StandIn, kind: str, fields: dict[str, Any]
) -> None:
    engine = connect(kind)
    write(engine, chat(engine), top_k=5, repetition_penalty=1.2)
    assert fields.items() <= stand_in.bodies[-1].items()


def test_a_regular_expression_goes_to_servers_that_know_it(
    connect: Connect, stand_in: StandIn
) -> None:
    engine, written = connect("vllm"), Written()
    engine.submit(Request(chat(engine), grammar=Grammar("regex", "yes|no")), written)
    written.wait_done()
    assert stand_in.bodies[-1]["structured_outputs"] == {"regex": "yes|no"}
    engine = connect()
    with pytest.raises(InvalidRequest, match="only a JSON schema is passed on"):
        engine.submit(Request(chat(engine), grammar=Grammar("regex", "yes|no")), written)
    assert len(stand_in.bodies) == 1


@pytest.mark.parametrize(
    "names", [("reasoning",), ("reasoning_content",), ("reasoning", "reasoning_content")]
)
def test_reasoning_is_part_of_the_text(
    connect: Connect, stand_in: StandIn, names: tuple[str, ...]
) -> None:
    """Whatever it is called, and once."""

    def answer(handler: Handler) -> None:
        handler.begin_stream()
        for delta in (dict.fromkeys(names, "Hm. "), {"content": "Yes"}):
            handler.send_event({"choices": [{"delta": delta}]})
        handler.send_event(b"[DONE]")

    stand_in.answer = answer
    engine = connect("vllm")
    assert "".join(words_of(write(engine, chat(engine)))) == "Hm. Yes"


def test_what_an_upstream_cannot_do_is_refused_by_name(connect: Connect, stand_in: StandIn) -> None:
    engine = connect()
    ids = chat(engine)
    for settings, param in (
        ({"top_k": 5}, "top_k"),
        ({"min_p": 0.1}, "min_p"),
        ({"ignore_eos": True}, "ignore_eos"),
        ({"logit_bias": (TokenBias(4, 2.0),)}, "logit_bias"),
        ({"temperature": -1.0}, "temperature"),
    ):
        with pytest.raises(InvalidRequest) as refused:
            write(engine, ids, **settings)
        assert refused.value.param == param
    scaled = Interventions(mlp=(LayerFactor(0, 0.5),))
    with pytest.raises(InvalidRequest, match="remove the interventions"):
        engine.submit(Request(ids, interventions=scaled), Written())
    with pytest.raises(InvalidRequest, match="cannot slide") as refused:
        engine.submit(Request(ids, n_keep=4), Written())
    assert refused.value.param == "truncation"
    with pytest.raises(InvalidRequest, match="empty"):
        engine.submit(Request([]), Written())
    with pytest.raises(InvalidRequest, match="after each layer"):
        engine.inspect(LogitLens(ids, position=1, chosen=1))
    assert not stand_in.bodies


def test_an_upstream_without_logprobs_is_asked_without(connect: Connect, stand_in: StandIn) -> None:
    def answer(handler: Handler) -> None:
        if "logprobs" in handler.body:
            handler.json(400, {"error": {"message": "logprobs are not supported"}})
        else:
            handler.stream([" a fox", " ran"], logprobs=False)

    stand_in.answer = answer
    engine = connect()
    for n_asked in (3, 4):
        written = write(engine, chat(engine))
        assert "".join(words_of(written)) == " a fox ran"
        assert all(math.isnan(token.logprob) for token in written.of(Token))
        assert len(stand_in.bodies) == n_asked


def test_words_of_an_upstream_without_logprobs_are_no_more_tokens(
    connect: Connect, stand_in: StandIn
) -> None:
    """Its tokens are told by nobody, and may be several words: the limit is for what it sent."""
    pieces = ["I", "'m", " here", ".\n\n", "You", "'re", " not"]
    sent = threading.Event()

    def answer(handler: Handler) -> None:
        if not handler.body["messages"][2:]:
            handler.begin_stream()
            for piece in pieces[:4]:
                handler.send_event({"choices": [handler.choice(piece, False)]})
            sent.wait(PATIENCE_S)
        else:
            handler.stream(pieces[4:], logprobs=False)

    stand_in.answer = answer
    engine, written = connect("vllm"), Written()
    run = engine.submit(Request(chat(engine), SamplingParams(max_tokens=6)), written)
    written.until(lambda event: isinstance(event, Token) and event.index == 6)
    run.update(temperature=0.2)
    sent.set()
    written.wait_done()
    assert "".join(words_of(written)) == "".join(pieces[:6])
    assert written.of(Done)[0].reason == "length"
    assert stand_in.bodies[-1]["max_tokens"] == 2


def test_an_upstream_that_does_not_end_is_ended(connect: Connect, stand_in: StandIn) -> None:
    """Whether or not it tells its tokens."""
    for logprobs in (True, False):

        def answer(handler: Handler, logprobs: bool = logprobs) -> None:
            handler.begin_stream()
            for word in [" a fox"] * 4:
                handler.send_event({"choices": [handler.choice(word, logprobs)]})

        stand_in.answer = answer
        engine = connect()
        written = write(engine, chat(engine), max_tokens=3)
        assert "".join(words_of(written)) == " a fox" * 3
        done = written.of(Done)[0]
        assert done.message == "the upstream wrote more than the 3 tokens that were asked for"


def test_an_upstream_of_few_candidates_is_asked_for_those(
    connect: Connect, stand_in: StandIn
) -> None:
    """As vLLM with --max-logprobs 5."""

    def answer(handler: Handler) -> None:
        if (n_top := handler.body.get("top_logprobs", 0)) > 5:
            said = f"Requested sample logprobs of {n_top}, which is greater than max allowed: 5"
            handler.json(400, {"error": {"message": said}})
        else:
            handler.stream(WORDS)

    stand_in.answer = answer
    engine = connect("vllm")
    for _ in range(2):
        written = write(engine, chat(engine))
        assert [token.logprob for token in written.of(Token)] == [-2.5] * len(WORDS)
    assert [body["top_logprobs"] for body in stand_in.bodies] == [20, 5, 5]


def test_a_refusal_that_quotes_the_request_leaves_the_logprobs_of_the_next(
    connect: Connect, stand_in: StandIn
) -> None:
    def answer(handler: Handler) -> None:
        if handler.body["temperature"] > 2:
            quoted = {"msg": "temperature is at most 2", "input": handler.body}
            handler.json(422, {"detail": [quoted]})
        else:
            handler.stream(WORDS)

    stand_in.answer = answer
    engine = connect()
    with pytest.raises(InvalidRequest, match="temperature is at most 2"):
        write(engine, text(engine, "Hi"), temperature=3)
    written = write(engine, text(engine, "Hi"))
    assert [token.logprob for token in written.of(Token)] == [-0.25] * len(WORDS)


def test_the_key_is_sent_and_not_shown(
    connect: Connect, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(UPSTREAM_KEY, "sesame")
    engine = connect()
    write(engine, chat(engine))
    assert [h["Authorization"] for h in stand_in.headers] == ["Bearer sesame"] * 3
    assert "sesame" not in repr(engine.address) + repr(engine.hello)


# ---- changes while it writes -----------------------------------------------------------------


def held_after(n: int, go_on: threading.Event) -> Callable[[Handler], None]:
    """Return an answer that sends `n` words, and the others once the test has done something."""

    def answer(handler: Handler) -> None:
        handler.begin_stream()
        for i, word in enumerate(WORDS):
            if i == n:
                assert go_on.wait(PATIENCE_S)
            handler.send_event({"choices": [handler.choice(word, True)]})
        handler.send_event(b"[DONE]")

    return answer


def test_a_change_begins_another_stream_from_the_text_so_far(
    connect: Connect, stand_in: StandIn
) -> None:
    engine, n, changed = connect("vllm"), 3, threading.Event()

    def answer(handler: Handler) -> None:
        is_first = len(stand_in.bodies) == 1
        (held_after(n, changed) if is_first else lambda again: again.stream(WORDS))(handler)

    stand_in.answer = answer
    written = Written()
    run = engine.submit(Request(chat(engine), SamplingParams(seed=5, max_tokens=9)), written)
    written.until(lambda event: isinstance(event, Token) and event.index == n - 1)
    assert run.update(temperature=0.2) == n
    changed.set()
    written.wait_done()
    first, second = stand_in.bodies
    assert (first["temperature"], second["temperature"]) == (1.0, 0.2)
    assert second["messages"][-1] == {"role": "assistant", "content": "".join(WORDS[:n])}
    assert second["continue_final_message"] is True
    assert (second["max_tokens"], second["seed"]) == (9 - n, 5 + n)
    assert [token.index for token in written.of(Token)] == list(range(9))
    assert words_of(written) == [*WORDS[:n], *WORDS[: 9 - n]]
    (updated,) = written.of(Updated)
    assert (updated.index, updated.params.temperature) == (n, 0.2)
    assert written.of(Done)[0].reason == "length"


def test_scheduled_changes_act_at_their_tokens(connect: Connect, stand_in: StandIn) -> None:
    engine = connect("llamacpp")
    updates = (ScheduledUpdate(0, {"temperature": 0.7}), ScheduledUpdate(3, {"top_k": 2}))
    written = Written()
    params = SamplingParams(seed=5, max_tokens=6)
    engine.submit(Request(text(engine), params, updates=updates), written)
    written.wait_done()
    first, second = stand_in.bodies
    assert (first["temperature"], second["temperature"], second["top_k"]) == (0.7, 0.7, 2)
    assert second["prompt"] == first["prompt"] + "".join(WORDS[:3])
    assert words_of(written) == [*WORDS[:3], *WORDS[:3]]


def test_a_text_that_goes_on_in_another_stream_has_one_prompt(
    connect: Connect, stand_in: StandIn
) -> None:
    """What is written is a part of the other stream's prompt there, and in its cache."""

    def answer(handler: Handler) -> None:
        n = len(handler.body["prompt"].split())
        details = {"cached_tokens": n - 1}
        handler.stream(WORDS, usage={"prompt_tokens": n, "prompt_tokens_details": details})

    stand_in.answer = answer
    engine = connect("llamacpp")
    prompt = "Once there was"
    whole = write(engine, text(engine, prompt), max_tokens=6).of(Done)[0]
    assert (whole.prompt_tokens, whole.timings.cache_n, whole.timings.prompt_n) == (3, 2, 1)
    written = Written()
    updates = (ScheduledUpdate(4, {"temperature": 0.7}),)
    params = SamplingParams(max_tokens=6)
    engine.submit(Request(text(engine, prompt), params, updates=updates), written)
    done = written.wait_done()
    assert len(stand_in.bodies) == 3
    assert (done.prompt_tokens, done.completion_tokens) == (3, 6)
    assert (done.timings.cache_n, done.timings.prompt_n, done.timings.predicted_n) == (0, 3, 6)


def test_settings_of_an_answer_that_cannot_go_on_do_not_change(
    connect: Connect, stand_in: StandIn
) -> None:
    engine, tried = connect(), threading.Event()
    stand_in.answer = held_after(1, tried)
    written = Written()
    run = engine.submit(Request(chat(engine)), written)
    written.until(lambda event: isinstance(event, Token))
    with pytest.raises(InvalidRequest, match="act on the next answer"):
        run.update(temperature=0.2)
    assert run.update(capture=False) == 1
    tried.set()
    written.wait_done()
    assert words_of(written) == list(WORDS)
    assert len(stand_in.bodies) == 1
    with pytest.raises(InvalidRequest, match="ended"):
        run.update(capture=True)


def test_a_cancelled_text_is_cancelled_there(connect: Connect, stand_in: StandIn) -> None:
    engine = connect()
    stand_in.answer = lambda handler: handler.stream(WORDS * 1000, delay=0.005)
    written = Written()
    run = engine.submit(Request(chat(engine), SamplingParams(max_tokens=9000)), written)
    written.until(lambda event: isinstance(event, Token) and event.index == 3)
    run.cancel()
    done = written.wait_done()
    assert (done.reason, done.message) == ("cancelled", "")
    assert done.completion_tokens == len(written.of(Token))
    assert stand_in.gone.wait(10)
    wait_until(lambda: engine.stats is not None and engine.stats.n_running == 0)


# ---- what may go wrong -----------------------------------------------------------------------


def sends(status: int, body: Any, **headers: str) -> Callable[[Handler], None]:
    return lambda handler: handler.json(status, body, **headers)


ERROR = {"error": {"message": "told so\nby the server"}}


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (sends(401, ERROR), UnavailableError, f"refuses the key .*told so by.*{UPSTREAM_KEY}"),
        (sends(404, {"detail": "nope"}), UnavailableError, "has no /v1/chat.*nope.*OpenAI"),
        (sends(429, ERROR, Retry_After="7"), QueueFull, "busy: told so.*try again in 7 s"),
        (sends(400, {"error": "too long"}), InvalidRequest, "refuses the request: too long"),
        (sends(500, ["odd"]), UnavailableError, r'failed \(HTTP 500: \["odd"\]\)'),
        (sends(200, {"choices": []}), UnavailableError, "application/json where a stream"),
        (
            sends(307, {}, Location="http://elsewhere.example/v1"),
            UnavailableError,
            "redirects to http://elsewhere.example/v1, which is not followed",
        ),
        (
            lambda handler: handler.raw(503, b"<html>" + b"x" * 10**6, "text/html"),
            UnavailableError,
            r"failed \(HTTP 503\)$",
        ),
        (lambda handler: handler.wfile.write(b"SSH-2.0-x\r\n"), UnavailableError, "no HTTP"),
        (
            lambda handler: setattr(handler, "close_connection", True),
            UnavailableError,
            "cannot be reached .it closed the connection without an answer.; check that it runs",
        ),
    ],
)
def test_a_refusal_answers_the_request(
    connect: Connect,
    stand_in: StandIn,
    answer: Callable[[Handler], None],
    kind: type[Exception],
    words: str,
) -> None:
    engine = connect()
    stand_in.answer = answer
    written = Written()
    with pytest.raises(kind, match=words):
        engine.submit(Request(chat(engine)), written)
    assert not written.events
    stand_in.answer = lambda handler: handler.stream(WORDS)
    wait_ready(engine)
    assert words_of(write(engine, chat(engine))) == list(WORDS)


def after(*events: Any) -> Callable[[Handler], None]:
    """Return an answer that sends a word, then these events, and breaks off."""

    def answer(handler: Handler) -> None:
        handler.begin_stream()
        for event in ({"choices": [handler.choice("One", True)]}, *events):
            handler.send_event(event)

    return answer


def chunked(n_cut: int) -> Callable[[Handler], None]:
    """Return an answer in chunks, as of most servers: a word, then another chunk that ends after
    `n_cut` bytes, as when the server is killed."""

    def answer(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        handler.close_connection = True
        event = json.dumps({"choices": [handler.choice("One", True)]}).encode()
        chunk = b"data: %b\n\n" % event
        chunk = b"%x\r\n%b\r\n" % (len(chunk), chunk)
        handler.wfile.write(chunk + chunk[:n_cut])

    return answer


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (after(), "broke off"),
        (chunked(0), "the answer of the upstream at .* broke off$"),
        (chunked(20), "the answer of the upstream at .* broke off$"),
        (after(b"{nonsense"), "sent {nonsense"),
        (after({"choices": [{"text": 5}]}), "sent .*text.*expected an OpenAI"),
        (after({"error": {"message": "out of memory"}}), "while it wrote: out of memory"),
        (after(b'"' + b"x" * (1 << 20) + b'"'), "more bytes than a text can have"),
        (lambda handler: handler.stream(WORDS * 9, finish=None), "more than the 20 tokens"),
    ],
)
def test_a_stream_that_fails_keeps_its_text(
    connect: Connect, stand_in: StandIn, answer: Callable[[Handler], None], words: str
) -> None:
    engine = connect()
    stand_in.answer = lambda handler: (handler.body.pop("max_tokens"), answer(handler))  # type: ignore[func-returns-value, return-value]
    written = write(engine, chat(engine), max_tokens=20)
    (done,) = written.of(Done)
    assert done.reason == "error"
    assert re.search(words, done.message), done.message
    assert len(written.of(Token)) == done.completion_tokens >= 1
    stand_in.answer = lambda handler: handler.stream(WORDS)
    wait_ready(engine)
    assert words_of(write(engine, chat(engine))) == list(WORDS)


def test_an_upstream_that_falls_silent_is_given_up(
    connect: Connect, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, ended = connect(), threading.Event()
    stand_in.answer = lambda handler: (after()(handler), ended.wait(PATIENCE_S))  # type: ignore[func-returns-value, return-value]
    sockets: list[socket.socket] = []

    class Seen(HttpExchange):
        def _open(self, *request: Any) -> http.client.HTTPResponse:
            response = super()._open(*request)
            assert self._socket is not None
            sockets.append(self._socket)
            return response

    monkeypatch.setattr(upstream_engine, "HttpExchange", Seen)
    written, silences = Written(), []

    def on_event(event: Event) -> None:
        if isinstance(event, Token):  # what is read next does not come
            silences.append(sockets[-1].gettimeout())
            sockets[-1].settimeout(0.01)
        written(event)

    engine.submit(Request(chat(engine), SamplingParams()), on_event)
    done = written.wait_done()
    ended.set()
    assert (done.reason, done.completion_tokens) == ("error", 1)
    assert silences == [Settings().engine_timeout]
    assert "nothing came for 180 s" in done.message


def test_a_slow_prompt_is_accepted_meanwhile(
    connect: Connect, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.upstream.run.OPEN_SECONDS", 0.05)
    engine = connect()
    accepted = threading.Event()
    stand_in.answer = lambda handler: (accepted.wait(), sends(400, ERROR)(handler))  # type: ignore[func-returns-value, return-value]
    written = Written()

    def on_event(event: Event) -> None:
        written(event)
        accepted.set()

    engine.submit(Request(chat(engine)), on_event)
    written.wait_done()
    assert accepted.is_set()
    assert [type(event) for event in written.events] == [Accepted, Done]
    assert "told so" in written.of(Done)[0].message


def test_too_many_texts_are_refused(connect: Connect, stand_in: StandIn) -> None:
    engine = connect(max_num_seqs=1, queue=1)
    stand_in.answer = lambda handler: handler.stream(WORDS * 100, delay=0.01)
    texts = [Written(), Written()]
    runs = [engine.submit(Request(chat(engine)), written) for written in texts]
    with pytest.raises(QueueFull, match="--max-num-seqs and --queue"):
        engine.submit(Request(chat(engine)), Written())
    for run, written in zip(runs, texts, strict=True):
        run.cancel()
        written.wait_done()


def test_paused_texts_take_no_place_of_the_others(connect: Connect) -> None:
    engine = connect(max_num_seqs=1, queue=0)
    texts = [Written() for _ in range(3)]
    runs = [engine.submit(Request(chat(engine), pace=0.0), written) for written in texts[:2]]
    done = texts[0].wait_done()
    assert (done.reason, done.message) == ("cancelled", ENDED_IN_PAUSE)
    engine.submit(Request(chat(engine)), texts[2])
    assert texts[2].wait_done().reason == "eos"
    runs[1].update(pace=PaceChange(None))
    texts[1].wait_done()
    assert words_of(texts[1]) == list(WORDS)


def test_a_paused_text_is_read_token_by_token(connect: Connect) -> None:
    engine, written = connect(), Written()
    run = engine.submit(Request(chat(engine), pace=0.0), written)
    for n in (1, 2):
        run.update(pace=PaceChange(0.0, 1))
        written.until(lambda event, n=n: isinstance(event, Token) and event.index == n - 1)
        assert len(written.of(Token)) == n
    run.update(pace=PaceChange(None))
    timings = written.wait_done().timings
    assert words_of(written) == list(WORDS)
    assert timings.paced_ms == pytest.approx(sum(token.times.paced for token in written.of(Token)))
    assert [event.pace for event in written.of(Updated)] == [None]


def test_nobody_can_count_through_the_words_of_others() -> None:
    tokenizer, other = WordTokenizer(), WordTokenizer()
    secret = " Meyerhofer"
    (id,) = tokenizer.encode(secret)
    assert tokenizer.decode([id]) == secret
    assert other.encode(secret) != [id], "an id tells nothing of its word"
    assert "Meyerhofer" not in tokenizer.decode(range(FIRST_WORD + 10_000))
    near = [other for other in range(id - 5000, id + 5000) if other != id]
    assert not any(map(tokenizer.token_bytes, near)), "nor does one id lead to others"


@pytest.mark.parametrize(
    ("usage", "timings"),
    [
        ({"prompt_tokens": -5, "completion_tokens": -1}, {}),
        ({"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": -4}}, {}),
        ({"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 40}}, {}),
        (None, {"draft_n": -1, "draft_n_accepted": -1, "predicted_ms": -2.5}),
        (None, {"draft_n_by_position": [3, -1], "prompt_n": "many"}),
    ],
)
def test_counts_that_cannot_be_are_not_passed_on(
    connect: Connect, stand_in: StandIn, usage: dict[str, Any] | None, timings: dict[str, Any]
) -> None:
    def answer(handler: Handler) -> None:
        handler.begin_stream()
        handler.send_event({"choices": [handler.choice(" a", True)]})
        handler.send_event({"choices": [{"text": "", "finish_reason": "stop"}]})
        handler.send_event({"choices": [], "usage": usage, "timings": timings})
        handler.send_event(b"[DONE]")

    engine = connect()
    stand_in.answer = answer
    (done,) = write(engine, chat(engine)).of(Done)
    assert done.reason == "eos"
    assert done.prompt_tokens >= 0
    numbers = msgspec.structs.asdict(done.timings)
    for name, value in numbers.items():
        assert min(value, default=0) >= 0 if isinstance(value, tuple) else value >= 0, name


def test_a_log_probability_above_0_is_0(connect: Connect, stand_in: StandIn) -> None:
    def answer(handler: Handler) -> None:
        handler.begin_stream()
        told = {"tokens": [" a"], "token_logprobs": [1e4], "top_logprobs": [{" a": 1e4}]}
        handler.send_event({"choices": [{"text": " a", "logprobs": told}]})
        handler.send_event({"choices": [{"text": "", "finish_reason": "stop"}]})
        handler.send_event(b"[DONE]")

    engine = connect()
    stand_in.answer = answer
    written = write(engine, text(engine))
    (token,) = written.of(Token)
    assert token.logprob == 0
    assert [one.before for one in token.candidates] == [1]
    assert written.of(Done)[0].reason == "eos"


# ---- the state -------------------------------------------------------------------------------


def test_it_waits_for_an_upstream_that_is_not_there_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream_engine, "RETRY_SECONDS", 0.02)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        engine = UpstreamEngine(Settings(upstream=f"http://127.0.0.1:{port}"))
        engine.start()
        wait_until(lambda: engine.status.retry_seconds is not None)
        assert "cannot be reached" in engine.status.message
        assert engine.status.state == "loading"
        with pytest.raises(UnavailableError, match="cannot be reached"):
            engine.submit(Request([1]), Written())
        lines: list[str] = []
        printer = _StatusPrinter(None, lines.append)  # type: ignore[arg-type]
        engine.listen(printer.on_state)
        assert len(lines) == 1
        assert lines[0].startswith(f"The upstream at http://127.0.0.1:{port} cannot be reached")
        engine.close()


def test_an_upstream_that_went_away_is_found_again(connect: Connect, stand_in: StandIn) -> None:
    engine = connect()
    states: list[str] = []
    engine.listen(lambda status, hello: states.append(status.state))
    stand_in.answer = stand_in.answer_get = sends(502, {})
    with pytest.raises(UnavailableError):
        engine.submit(Request(chat(engine)), Written())
    wait_until(lambda: "restarting" in states)
    stand_in.answer_get = lambda handler: handler.json(200, stand_in.models)
    wait_ready(engine)


def test_an_upstream_that_comes_back_without_its_model_is_asked_again(
    connect: Connect, stand_in: StandIn
) -> None:
    """A server that loads its model at the first request, or the operator, may bring it again."""
    engine = connect()
    models, stand_in.models = stand_in.models, {"data": []}
    stand_in.answer = sends(502, {})
    with pytest.raises(UnavailableError):
        engine.submit(Request(chat(engine)), Written())
    wait_until(lambda: engine.status.state != "ready")
    assert engine.status.state == "restarting"
    assert engine.status.message == f"the upstream at {stand_in.url} has no model"
    stand_in.models = models
    wait_ready(engine)


def test_the_named_model_is_taken_or_missed(connect: Connect, stand_in: StandIn) -> None:
    stand_in.models["data"].append({"id": "other", "owned_by": "vllm", "max_model_len": 77})
    hello = connect(model="other").require_ready()
    assert (hello.model.name, hello.limits.context) == ("other", 77)
    assert hello.upstream is not None
    assert (hello.upstream.url, hello.upstream.kind) == (stand_in.url, "vLLM")
    engine = connect(model="third", wait=False)
    wait_until(lambda: engine.status.state == "failed")
    assert "no model 'third'; it has: stand-in, other" in engine.status.message


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("localhost:8080", "has no scheme or no host"),
        ("ftp://localhost", "has no scheme"),
        ("http://localhost:99999", "out of range"),
        ("http://user:secret@localhost", "must not contain a user or a password"),
        ("http://localhost/?a=b", "query"),
        ("http://gpu..box:8080", "label empty"),
        ("http://localhost/ü", "must be escaped"),
        ("http://localhost/my server", "must be escaped"),
    ],
)
def test_bad_addresses_are_refused(url: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words) as refused:
        Address.of(Settings(upstream=url))
    assert "secret" not in str(refused.value)


def test_addresses_may_end_as_clients_write_them() -> None:
    for url in (
        "https://api.example.org/v1",
        "https://api.example.org/",
        "https://api.example.org",
    ):
        assert str(Address.of(Settings(upstream=url))) == "https://api.example.org"
    assert str(Address.of(Settings(upstream="http://[::1]:80/proxy/v1/"))) == "http://[::1]/proxy"


def test_settings_of_an_engine_here_do_not_go_with_it() -> None:
    for name, value, flag in (
        ("kv_memory", 5, "--kv-memory"),
        ("dtype", "q8", "--dtype"),
        ("backend", "torch", "--backend"),
        ("activations", "f32", "--activations"),
        ("cache_reuse", 64, "--cache-reuse"),
        ("prefix_cache", False, "--no-prefix-cache"),
    ):
        with pytest.raises(SettingsError, match=f"{flag} is about an engine on this machine"):
            Settings(upstream="http://localhost", **{name: value}).validate()  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="needs --upstream"):
        serve(Settings(tokenizer=Path("x")), print)
    Settings(upstream="http://localhost", max_num_seqs=9).validate()
