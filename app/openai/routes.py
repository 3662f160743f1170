"""`/v1/…`: completions, chat completions and models for OpenAI clients.

A stream consists of server-sent events and ends with `[DONE]`; comments keep it alive while there
are no tokens. If the client disconnects, its run is cancelled, whether streaming or not.
"""

from __future__ import annotations

import contextlib
import queue
import selectors
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import flask
import msgspec
from flask import Flask, Response, jsonify

from app.engine.client import EngineClient, UnavailableError
from app.http.client_limits import submit
from app.http.errors import body_of_engine_error
from app.openai.body import decode_body
from app.openai.logprobs import ChatLogprobs, TextLogprobs
from app.openai.responses import (
    FINISH_REASONS,
    ResponseFormat,
    chat_format,
    completion_format,
    timings,
    usage,
)
from app.openai.schema import ChatRequest, CompletionRequest, check_logprobs, expect_served
from app.prompt.prompts import prompt_ids
from gpu import ModelInfo, Request
from gpu.events import Accepted, Done, Event, Token

PING_SECONDS = 5.0
POLL_SECONDS = 1.0
"""Interval at which the connection of the client is checked."""


def register(app: Flask, engine: EngineClient) -> None:
    """Add the `/v1` routes."""

    @app.get("/v1/models")
    def models() -> Response:
        return jsonify(object="list", data=_models(engine.require_ready().model))

    @app.get("/v1/models/<path:name>")
    def model(name: str) -> Response:
        info = engine.require_ready().model
        expect_served(name, info)
        return jsonify(next(model for model in _models(info) if model["id"] == name))

    @app.post("/v1/completions")
    def completions() -> Response:
        return _complete(engine)

    @app.post("/v1/chat/completions")
    def chat_completions() -> Response:
        return _complete_chat(engine)


def _models(model: ModelInfo) -> list[dict[str, Any]]:
    """Return the model objects of the base model and its adapters."""
    return [
        _model_object(model.name, meta=msgspec.to_builtins(model)),
        *(_model_object(lora.name, parent=model.name) for lora in model.loras),
    ]


def _model_object(name: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "local", **more}


def _complete(engine: EngineClient) -> Response:
    hello = engine.require_ready()
    body = decode_body(CompletionRequest)
    interventions = body.interventions(hello.model)
    params = body.params(hello.defaults)
    check_logprobs(body.n_top, params, "logprobs")
    text, given_ids = body.text_or_ids()
    ids = prompt_ids(engine.tokenizer, text, ids=given_ids)
    echo = ""
    if body.echo:
        echo = text if text is not None else engine.tokenizer.decode(ids)
    logprobs = None
    if body.n_top is not None:
        logprobs = TextLogprobs(engine.tokenizer, params, body.n_top, 0)
    response = completion_format(body.model or hello.model.name, echo, logprobs)
    request = Request(ids, params, interventions=interventions, priority=body.priority)
    return _answer(engine, request, response, body)


def _complete_chat(engine: EngineClient) -> Response:
    hello = engine.require_ready()
    body = decode_body(ChatRequest)
    interventions = body.interventions(hello.model)
    params = body.params(hello.defaults, hello.limits.context)
    check_logprobs(body.n_top, params, "top_logprobs")
    ids = prompt_ids(
        engine.tokenizer, messages=body.plain(), continue_final=body.continue_final_message
    )
    logprobs = None
    if body.n_top is not None:
        logprobs = ChatLogprobs(engine.tokenizer, params, body.n_top)
    response = chat_format(body.model or hello.model.name, logprobs)
    request = Request(ids, params, interventions=interventions, priority=body.priority)
    return _answer(engine, request, response, body)


# ---- running ---------------------------------------------------------------------------------


def _answer(
    engine: EngineClient,
    request: Request,
    response: ResponseFormat,
    body: CompletionRequest | ChatRequest,
) -> Response:
    events = _events(engine, request, _client_gone())
    seed = _wait_accepted(events).params.seed
    if body.stream:
        with_usage = body.stream_options is not None and body.stream_options.include_usage
        stream = _stream(events, response, with_usage, seed)
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return Response(stream, mimetype="text/event-stream", headers=headers)
    tokens: list[Token] = []
    for event in events:
        if isinstance(event, Token):
            tokens.append(event)
        elif isinstance(event, Done):
            if event.reason not in FINISH_REASONS:
                raise _interrupted(event, seed)
            text = response.prefix + "".join(token.text for token in tokens)
            visible = [token for token in tokens if not token.eos]
            return jsonify(response.answer(text, visible, event) | _extra_fields(event, seed))
    raise AssertionError("a run ends with Done")


def _wait_accepted(events: Iterator[Event | None]) -> Accepted:
    """Wait until the engine accepts the run: until then, an error can have its own HTTP status."""
    for event in events:
        if isinstance(event, Accepted):
            return event
        if isinstance(event, Done):
            raise _interrupted(event, None)
    raise AssertionError("a run ends with Done")


def _interrupted(done: Done, seed: int | None) -> UnavailableError:
    """Return the error for a run that ended early.

    The server does not keep its text for clients of this API, unlike for pages.
    """
    reason = done.message or "the run was cancelled; the server is shutting down"
    n = done.completion_tokens
    again = "" if seed is None else f" with seed {seed} to get the same text"
    return UnavailableError(
        f"{reason} (after {n} tokens of this answer, which the server does not keep); "
        f"send the request again{again}"
    )


def _extra_fields(done: Done, seed: int | None) -> dict[str, Any]:
    return {"timings": timings(done), "seed": seed}


def _stream(
    events: Iterator[Event | None], response: ResponseFormat, with_usage: bool, seed: int | None
) -> Iterator[bytes]:
    extra = {"usage": None} if with_usage else {}
    try:
        if response.first is not None:
            yield _sse(response.chunk(response.first, [], None) | extra)
        for event in events:
            if event is None:
                yield b": still here\n\n"
            elif isinstance(event, Token) and (event.text or response.logprobs) and not event.eos:
                yield _sse(response.chunk(response.delta(event.text), [event], None) | extra)
            elif isinstance(event, Done) and event.reason not in FINISH_REASONS:
                yield _sse(body_of_engine_error(_interrupted(event, seed)))
            elif isinstance(event, Done):
                last = response.chunk(response.delta(""), [], FINISH_REASONS[event.reason])
                yield _sse(last | extra | _extra_fields(event, seed))
                if with_usage:
                    yield _sse(last | {"choices": [], "usage": usage(event)})
        yield b"data: [DONE]\n\n"
    finally:
        events.close()  # type: ignore[attr-defined]


def _sse(message: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(message) + b"\n\n"


def _events(
    engine: EngineClient, request: Request, gone: Callable[[], bool]
) -> Iterator[Event | None]:
    """Yield the events of a run until it ends, and None after `PING_SECONDS` without an event.

    The run is cancelled if the iterator is closed or the client disconnects (`gone`).
    """
    inbox: queue.SimpleQueue[Event] = queue.SimpleQueue()
    run = submit(engine, request, inbox.put)
    sent_at = checked_at = time.monotonic()
    done = False
    try:
        while not done:
            event: Event | None = None
            with contextlib.suppress(queue.Empty):
                event = inbox.get(timeout=POLL_SECONDS)
            now = time.monotonic()
            if now - checked_at >= POLL_SECONDS:
                checked_at = now
                if gone():
                    run.cancel()
            if event is not None or now - sent_at >= PING_SECONDS:
                sent_at = now
                done = isinstance(event, Done)
                yield event
    finally:
        if not done:
            run.cancel()


def _client_gone() -> Callable[[], bool]:
    """Return a function that tells whether the client of this request has disconnected.

    Without a socket, as in tests, it returns False.
    """
    sock = flask.request.environ.get("werkzeug.socket")

    def gone() -> bool:
        if sock is None:
            return False
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(sock, selectors.EVENT_READ)
                return bool(selector.select(0)) and sock.recv(1, socket.MSG_PEEK) == b""
        except (OSError, ValueError):
            return True

    return gone
