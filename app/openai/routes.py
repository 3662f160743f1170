"""`/v1/…`: completions, chat completions and models, as OpenAI clients expect them.

A stream is server-sent events, ending with `[DONE]`; comments keep it alive while nothing is
written. A client that goes away cancels its run, streaming or not.
"""

from __future__ import annotations

import contextlib
import queue
import re
import selectors
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from flask import Flask, Response, jsonify, request

from app.engines import EngineClient, UnavailableError
from app.errors import body_of_engine_error
from app.openai_logprobs import ChatLogprobs, TextLogprobs
from app.openai_schema import ChatRequest, CompletionRequest, check_logprobs, expect_served
from app.openai_shape import FINISH_REASONS, Shape, chat_shape, text_shape, timings, usage
from app.prompts import prompt_ids
from app.protocol import ModelInfo
from app.shares import submit
from gpu import Interventions, InvalidRequest, SamplingParams
from gpu.events import Accepted, Done, Event, Token

PING_SECONDS = 5.0
LOOK_SECONDS = 1.0
"""How often to look whether the client is still there."""
KEPT_BY_THE_PAGE = "; the text so far is kept"
"""End of the engine's message about an interrupted run: true for a page, not for `/v1`."""


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
    """The base model and its adapters."""
    return [
        _listed(model.name, meta=msgspec.to_builtins(model)),
        *(_listed(lora.name, parent=model.name) for lora in model.loras),
    ]


def _listed(name: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "local", **more}


def _complete(engine: EngineClient) -> Response:
    hello = engine.require_ready()
    wanted = _decode(CompletionRequest)
    reach = wanted.reach(hello.model)
    params = wanted.params(hello.defaults)
    check_logprobs(wanted.n_top, params, "logprobs")
    text, given_ids = wanted.text_or_ids()
    ids = prompt_ids(engine.tokenizer, text, ids=given_ids)
    echo = ""
    if wanted.echo:
        echo = text if text is not None else engine.tokenizer.decode(ids)
    logprobs = None
    if wanted.n_top is not None:
        logprobs = TextLogprobs(engine.tokenizer, params, wanted.n_top, 0)
    shape = text_shape(wanted.model or hello.model.name, echo, logprobs)
    return _answer(engine, ids, params, reach, shape, wanted)


def _complete_chat(engine: EngineClient) -> Response:
    hello = engine.require_ready()
    wanted = _decode(ChatRequest)
    reach = wanted.reach(hello.model)
    params = wanted.params(hello.defaults, hello.limits.context)
    check_logprobs(wanted.n_top, params, "top_logprobs")
    ids = prompt_ids(
        engine.tokenizer, messages=wanted.plain(), continue_final=wanted.continue_final_message
    )
    logprobs = None
    if wanted.n_top is not None:
        logprobs = ChatLogprobs(engine.tokenizer, params, wanted.n_top)
    shape = chat_shape(wanted.model or hello.model.name, logprobs)
    return _answer(engine, ids, params, reach, shape, wanted)


def _decode(kind: type[Any]) -> Any:
    """The JSON body as `kind`, or `InvalidRequest` saying where it is wrong."""
    body = request.get_data()
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$.")
        field = re.search(r"(?:unknown|required) field `(\w+)`", message)
        if "unknown field" in message:
            message = f"{message}; unknown fields are refused, so that none is silently ignored"
        raise InvalidRequest(message, field.group(1) if field else path.rstrip("`")) from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the body must be a JSON object: {error}") from None


# ---- running ---------------------------------------------------------------------------------


def _answer(
    engine: EngineClient,
    ids: list[int],
    params: SamplingParams,
    reach: Interventions,
    shape: Shape,
    wanted: CompletionRequest | ChatRequest,
) -> Response:
    events = _events(engine, ids, params, reach, _client_gone())
    seed = _accepted(events).params.seed
    if wanted.stream:
        with_usage = wanted.stream_options is not None and wanted.stream_options.include_usage
        stream = _stream(events, shape, with_usage, seed)
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return Response(stream, mimetype="text/event-stream", headers=headers)
    tokens: list[Token] = []
    for event in events:
        if isinstance(event, Token):
            tokens.append(event)
        elif isinstance(event, Done):
            if event.reason not in FINISH_REASONS:
                raise _broken_off(event, seed)
            text = shape.prefix + "".join(token.text for token in tokens)
            written = [token for token in tokens if not token.eos]
            return jsonify(shape.answer(text, written, event) | _tail(event, seed))
    raise AssertionError("a run ends with Done")


def _accepted(events: Iterator[Event | None]) -> Accepted:
    """Wait for the engine's acceptance: until then, errors can still have a status of their own."""
    for event in events:
        if isinstance(event, Accepted):
            return event
        if isinstance(event, Done):
            raise _broken_off(event, None)
    raise AssertionError("a run ends with Done")


def _broken_off(done: Done, seed: int | None) -> UnavailableError:
    """An answer that cannot be finished. Unlike a page, whose text stays where it is, a client of
    this API has what was streamed to it and nothing else; the same seed writes all of it again."""
    reason = done.message.removesuffix(KEPT_BY_THE_PAGE)
    if not reason:
        reason = "the run was cancelled; the server is shutting down"
    n = done.completion_tokens
    again = "" if seed is None else f" with seed {seed}, which writes the same text"
    return UnavailableError(
        f"{reason} (after {n} tokens of this answer, of which the server keeps nothing); "
        f"send the request again{again}"
    )


def _tail(done: Done, seed: int | None) -> dict[str, Any]:
    return {"timings": timings(done), "seed": seed}


def _stream(
    events: Iterator[Event | None], shape: Shape, with_usage: bool, seed: int | None
) -> Iterator[bytes]:
    extra = {"usage": None} if with_usage else {}
    try:
        if shape.first is not None:
            yield _sse(shape.chunk(shape.first, [], None) | extra)
        for event in events:
            if event is None:
                yield b": still here\n\n"
            elif isinstance(event, Token) and (event.text or shape.logprobs) and not event.eos:
                yield _sse(shape.chunk(shape.delta(event.text), [event], None) | extra)
            elif isinstance(event, Done) and event.reason not in FINISH_REASONS:
                yield _sse(body_of_engine_error(_broken_off(event, seed)))
            elif isinstance(event, Done):
                last = shape.chunk(shape.delta(""), [], FINISH_REASONS[event.reason])
                yield _sse(last | extra | _tail(event, seed))
                if with_usage:
                    yield _sse(last | {"choices": [], "usage": usage(event)})
        yield b"data: [DONE]\n\n"
    finally:
        events.close()  # type: ignore[attr-defined]


def _sse(message: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(message) + b"\n\n"


def _events(
    engine: EngineClient,
    ids: list[int],
    params: SamplingParams,
    reach: Interventions,
    gone: Callable[[], bool],
) -> Iterator[Event | None]:
    """The events of a run to its end; None after every `PING_SECONDS` without one. Closing the
    iterator cancels the run, and so does the client's leaving."""
    inbox: queue.SimpleQueue[Event] = queue.SimpleQueue()
    run = submit(engine, ids, params, capture=False, on_event=inbox.put, reach=reach)
    spoke = looked = time.monotonic()
    done = False
    try:
        while not done:
            event: Event | None = None
            with contextlib.suppress(queue.Empty):
                event = inbox.get(timeout=LOOK_SECONDS)
            now = time.monotonic()
            if now - looked >= LOOK_SECONDS:
                looked = now
                if gone():
                    run.cancel()
            if event is not None or now - spoke >= PING_SECONDS:
                spoke = now
                done = isinstance(event, Done)
                yield event
    finally:
        if not done:
            run.cancel()


def _client_gone() -> Callable[[], bool]:
    """Whether the client of this request has closed its side. Without the socket: no."""
    sock = request.environ.get("werkzeug.socket")

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
