"""The native API of Hugging Face's Text Generation Inference (TGI): `GET /info`, and the body and
events of `POST /generate_stream`. Its schema is docs/openapi.json of its repository.

Its route for chats is OpenAI's, but takes no top-k, repetition penalty or watermark, so plain texts
go to the native one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.client import HTTPResponse
from typing import Any

import msgspec

from app.upstream.chunks import Choice, Chunk, Logprobs, TokenLogprob, TopLogprob, Usage
from app.upstream.transport import HttpExchange
from gpu import Grammar, InvalidRequest, SamplingParams

GENERATE_STREAM = "/generate_stream"
WATERMARK = {
    "watermark_bias": 2.0,
    "greenlist_ratio": 0.5,
    "hashing_key": 15485863,
    "selfhash_width": 0,
}
"""Its watermark, by the names of our settings. Requests only switch it on; WATERMARK_DELTA and
WATERMARK_GAMMA in its environment are the first two."""


class Info(msgspec.Struct, frozen=True):
    """Answer of `/info`. `router` is the program that serves it."""

    router: str
    version: str
    model_id: str
    max_total_tokens: int | None = None


class EventToken(msgspec.Struct, frozen=True):
    """`special`: the text is the name of a special token, such as the end."""

    id: int
    text: str
    logprob: float | None = None
    special: bool = False

    @property
    def top_logprob(self) -> TopLogprob:
        return TopLogprob(self.text, self.logprob, None, self.id)


class StreamDetails(msgspec.Struct, frozen=True):
    finish_reason: str
    generated_tokens: int
    input_length: int = 0


class StreamEvent(msgspec.Struct, frozen=True):
    """Event of `/generate_stream`: a token, or an error in place of one. The last token has the
    whole text and `details`."""

    token: EventToken | None = None
    top_tokens: list[EventToken] = []
    generated_text: str | None = None
    details: StreamDetails | None = None
    error: str | None = None
    error_type: str | None = None

    @property
    def is_last(self) -> bool:
        return self.generated_text is not None or self.error is not None

    def chunk(self) -> Chunk:
        """Return the event as a chunk of OpenAI's completions."""
        if self.token is None:
            return Chunk(error={"message": self.error, "type": self.error_type})
        token, details = self.token, self.details
        # A filter of the sampler leaves tokens without a log-probability.
        top = [one.top_logprob for one in self.top_tokens if one.logprob is not None]
        told = TokenLogprob(token.text, token.logprob, None, token.id, top)
        finish = details.finish_reason if details else "stop" if self.is_last else None
        choice = Choice(
            text="" if token.special else token.text,
            logprobs=Logprobs([told]),
            finish_reason="stop" if finish == "eos_token" else finish,
        )
        usage = Usage(details.input_length, details.generated_tokens) if details else None
        return Chunk([choice], usage)


def chunks_of(exchange: HttpExchange, response: HTTPResponse, path: str) -> Iterator[Chunk]:
    """Yield the chunks of a stream of `path`. Raises what `HttpExchange.events` raises."""
    if path != GENERATE_STREAM:
        yield from exchange.events(response, Chunk)
        return
    for event in exchange.events(response, StreamEvent):
        yield event.chunk()
        if event.is_last:  # there is no [DONE]
            return


def generate_body(
    text: str, params: SamplingParams, seed: int, max_new_tokens: int | None, n_top: int
) -> dict[str, Any]:
    """Return the body of `/generate_stream`. Neutral settings are left out, as it refuses them;
    without a temperature and filters it is greedy. Raises InvalidRequest for another watermark
    than its own."""
    given: dict[str, Any] = {
        "details": True,
        "seed": seed,
        "top_n_tokens": n_top,
        "repetition_penalty": params.repetition_penalty,
    }
    if max_new_tokens is not None:
        given["max_new_tokens"] = max_new_tokens
    if params.temperature:
        given |= {"do_sample": True, "temperature": params.temperature}
        if params.top_k:
            given["top_k"] = params.top_k
        if params.top_p < 1:
            given["top_p"] = params.top_p
    if params.frequency_penalty:
        given["frequency_penalty"] = params.frequency_penalty
    if params.stop:
        given["stop"] = list(params.stop)
    if params.watermark_bias:
        _expect_watermark(params)
        given["watermark"] = True
    return {"inputs": text, "parameters": given}


def grammar_of(grammar: Grammar) -> dict[str, Any]:
    """Return the grammar of both routes for a JSON schema or a regular expression."""
    if grammar.kind == "regex":
        return {"type": "regex", "value": grammar.text}
    return {"type": "json", "value": json.loads(grammar.text)}


def _expect_watermark(params: SamplingParams) -> None:
    if {name: getattr(params, name) for name in WATERMARK} != WATERMARK:
        own = ", ".join(f"{name} to {value:g}" for name, value in WATERMARK.items())
        raise InvalidRequest(
            f"TGI writes only its own watermark; set {own}, or watermark_bias to 0",
            "watermark_bias",
        )
