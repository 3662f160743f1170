"""Answer of `POST /v1/responses`: whole, or as the typed events of a stream."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from app.http.errors import body_of_engine_error
from app.openai.choices import Choices
from app.openai.completion_format import FINISH_REASONS, timings, usage
from app.openai.responses_request import ResponsesRequest
from app.openai.structured_outputs import TextFormat
from gpu import EngineError, SamplingParams
from gpu.events import Done, Token


@dataclass(frozen=True)
class ResponseObject:
    """The `response` of one request, at each stage. It has one output item, a message, with one
    text part. `n_dropped`: messages that were left out of the prompt."""

    body: ResponsesRequest
    params: SamplingParams
    model: str
    n_dropped: int = 0
    id: str = field(default_factory=lambda: f"resp_{secrets.token_hex(24)}")
    item_id: str = field(default_factory=lambda: f"msg_{secrets.token_hex(24)}")
    created_at: int = field(default_factory=lambda: int(time.time()))

    def under_way(self) -> dict[str, Any]:
        """Return the response before its end."""
        return self._response("in_progress")

    def ended(self, text: str, done: Done, seed: int | None) -> dict[str, Any]:
        """Return the response with its text. `timings` and `seed` are extensions, as in chat."""
        status = end_status(done)
        incomplete = status == "incomplete"
        return {
            **self._response(status),
            "completed_at": None if incomplete else int(time.time()),
            "incomplete_details": {"reason": "max_output_tokens"} if incomplete else None,
            "output": [self.item(status, text)],
            "usage": token_usage(done),
            "timings": timings(done),
            "seed": seed,
        }

    def failed(self, message: str) -> dict[str, Any]:
        """Return the response of a run that was interrupted."""
        return {
            **self._response("failed"),
            "error": {"code": "server_error", "message": message},
        }

    def item(self, status: str, text: str | None = None) -> dict[str, Any]:
        """Return the output item; without a text, its content has not begun."""
        return {
            "id": self.item_id,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": [] if text is None else [text_part(text)],
        }

    def _response(self, status: str) -> dict[str, Any]:
        body, params = self.body, self.params
        given = None if body.text is None else body.text.format
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created_at,
            "completed_at": None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": self.model,
            "output": [],
            "parallel_tool_calls": False,
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "store": False,
            "temperature": params.temperature,
            "text": {"format": msgspec.to_builtins(given or TextFormat())},
            "tool_choice": "none",
            "tools": [],
            "top_p": params.top_p,
            "truncation": body.truncation or "disabled",
            "usage": None,
            "user": body.user,
            **({"dropped_messages": self.n_dropped} if self.n_dropped else {}),
        }


def text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def end_status(done: Done) -> str:
    """Return "incomplete" if the text was cut off, by `max_output_tokens` or the context."""
    return "incomplete" if FINISH_REASONS[done.reason] == "length" else "completed"


def token_usage(done: Done) -> dict[str, Any]:
    """Return `usage`. Nothing is written to a cache that outlives the engine, nor any reasoning."""
    counts = usage([done])
    cached = counts["prompt_tokens_details"]["cached_tokens"]
    return {
        "input_tokens": counts["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": counts["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": counts["total_tokens"],
    }


def whole(choices: Choices, response: ResponseObject) -> dict[str, Any]:
    """Return the answer once the run has ended."""
    text = ""
    for found in choices:
        if found is None:
            continue
        _, event = found
        if isinstance(event, Token):
            text += event.text
        elif isinstance(event, Done):
            done = event
    return response.ended(text, done, choices.seed_of(0))


def stream(choices: Choices, response: ResponseObject) -> Iterator[bytes]:
    """Yield the events of a stream. Comments keep it alive while there are no tokens."""
    events = ResponseEvents(response)
    yield from events.begin()
    try:
        for found in choices:
            if found is None:
                yield b": still here\n\n"
                continue
            _, event = found
            if isinstance(event, Token):
                yield from events.add(event.text)
            elif isinstance(event, Done):
                yield from events.end(event, choices.seed_of(0))
    except EngineError as error:
        yield from events.fail(error)


class ResponseEvents:
    """Server-sent events of one response, numbered, in the order that OpenAI documents."""

    def __init__(self, response: ResponseObject) -> None:
        self._response = response
        self._numbers = itertools.count()
        self._text: str | None = None  # None until the output item has begun

    def begin(self) -> Iterator[bytes]:
        for type in ("response.created", "response.in_progress"):
            yield self._event(type, response=self._response.under_way())

    def add(self, text: str) -> Iterator[bytes]:
        """Yield the events of more text."""
        yield from self._begin_item()
        if text:
            self._text = (self._text or "") + text
            yield self._of_part("response.output_text.delta", delta=text, logprobs=[])

    def end(self, done: Done, seed: int | None) -> Iterator[bytes]:
        """Yield the events after the last token."""
        yield from self._begin_item()
        text, status = self._text or "", end_status(done)
        yield self._of_part("response.output_text.done", text=text, logprobs=[])
        yield self._of_part("response.content_part.done", part=text_part(text))
        item = self._response.item(status, text)
        yield self._event("response.output_item.done", output_index=0, item=item)
        response = self._response.ended(text, done, seed)
        yield self._event(f"response.{status}", response=response)

    def fail(self, error: EngineError) -> Iterator[bytes]:
        """Yield the events of an error in the middle of an answer."""
        described = body_of_engine_error(error)["error"]
        fields = {name: described[name] for name in ("code", "message", "param")}
        yield self._event("error", **fields)
        response = self._response.failed(described["message"])
        yield self._event("response.failed", response=response)

    def _begin_item(self) -> Iterator[bytes]:
        if self._text is None:
            self._text = ""
            item = self._response.item("in_progress")
            yield self._event("response.output_item.added", output_index=0, item=item)
            yield self._of_part("response.content_part.added", part=text_part(""))

    def _of_part(self, type: str, **fields: Any) -> bytes:
        place = {"item_id": self._response.item_id, "output_index": 0, "content_index": 0}
        return self._event(type, **place, **fields)

    def _event(self, type: str, **fields: Any) -> bytes:
        message = {"type": type, "sequence_number": next(self._numbers), **fields}
        return b"event: " + type.encode() + b"\ndata: " + msgspec.json.encode(message) + b"\n\n"
