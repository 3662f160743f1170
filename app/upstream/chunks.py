"""Chunks of a stream of `/v1/completions` or `/v1/chat/completions`, and the tokens in them.

Two forms of `logprobs` are read wherever they come: the lists of OpenAI's completions (vLLM, and
this server), and the objects of its chat completions (also llama-server's completions). Fields that
are not here are ignored.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec


class TopLogprob(msgspec.Struct, frozen=True):
    """`id`: None from servers other than llama-server."""

    token: str = ""
    logprob: float | None = None
    bytes: list[int] | None = None
    id: int | None = None


class TokenLogprob(TopLogprob, frozen=True):
    top_logprobs: list[TopLogprob] | None = None


class Logprobs(msgspec.Struct, frozen=True):
    content: list[TokenLogprob] | None = None
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float | None] | None] | None = None


class Delta(msgspec.Struct, frozen=True):
    """`reasoning_content`: what a reasoning model writes before its answer; newer vLLMs call it
    `reasoning`, and some servers send both."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class Choice(msgspec.Struct, frozen=True):
    """`token_ids` and `stop_reason` are vLLM's: ids of the new tokens, and the stop string that
    ended the text."""

    text: str | None = None
    delta: Delta | None = None
    logprobs: Logprobs | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    stop_reason: int | str | None = None

    @property
    def new_text(self) -> str:
        delta = self.delta or Delta()
        reasoning = delta.reasoning_content or delta.reasoning or ""
        return (self.text or "") + reasoning + (delta.content or "")


class CachedTokens(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: CachedTokens | None = None

    @property
    def n_cached(self) -> int:
        """Tokens of the prompt that the upstream had in its cache; 0 too if it reports no such
        number of them."""
        found = (self.prompt_tokens_details or CachedTokens()).cached_tokens or 0
        return found if 0 <= found <= self.prompt_tokens else 0


class Chunk(msgspec.Struct, frozen=True):
    """`timings`: llama-server's. `error`: what went wrong after the stream had begun."""

    choices: list[Choice] = []
    usage: Usage | None = None
    timings: dict[str, Any] | None = None
    error: Any = None


@dataclass(frozen=True, slots=True)
class Alternative:
    """A token that could have been written. `data`: its bytes; `id` and `data` may be unknown."""

    piece: str
    logprob: float
    data: bytes | None = None
    id: int | None = None


@dataclass(frozen=True, slots=True)
class WrittenToken:
    """A token as the upstream sent it. `text`: what it adds to the text. `top`: the most likely
    tokens in its place, best first; empty if they were not sent. `is_rest`: it is part of a text
    whose tokens were not told, and not the first part."""

    text: str
    piece: str
    data: bytes | None = None
    id: int | None = None
    logprob: float | None = None
    top: tuple[Alternative, ...] = ()
    is_rest: bool = False


def tokens_of(choice: Choice) -> list[WrittenToken]:
    """Return the tokens of a chunk. Empty if it has text but no tokens."""
    found = list(_told_tokens(choice.logprobs)) if choice.logprobs is not None else []
    ids = choice.token_ids or []
    if len(ids) == len(found):
        found = [
            WrittenToken("", one.piece, one.data, id, one.logprob, one.top)
            for one, id in zip(found, ids, strict=True)
        ]
    return _with_texts(found, choice.new_text)


def _told_tokens(logprobs: Logprobs) -> Iterator[WrittenToken]:
    for one in logprobs.content or ():
        top = tuple(_alternative(each) for each in one.top_logprobs or ())
        yield WrittenToken("", one.token, _bytes(one), one.id, _logprob(one.logprob), _sorted(top))
    pieces, values = logprobs.tokens or [], logprobs.token_logprobs or []
    tops = logprobs.top_logprobs or []
    for i, piece in enumerate(pieces):
        given = (tops[i] if i < len(tops) else None) or {}
        top = tuple(
            Alternative(text, min(0.0, value)) for text, value in given.items() if value is not None
        )
        value = values[i] if i < len(values) else None
        yield WrittenToken("", piece, None, None, _logprob(value), _sorted(top))


def _alternative(one: TopLogprob) -> Alternative:
    value = _logprob(one.logprob)
    return Alternative(one.token, -math.inf if value is None else value, _bytes(one), one.id)


def _logprob(value: float | None) -> float | None:
    """Return a log-probability; rounding may have left it above 0."""
    return None if value is None else min(0.0, value)


def _bytes(one: TopLogprob) -> bytes | None:
    """Return the bytes of a token; None if they were not sent or are no bytes."""
    values = one.bytes
    if not values or not all(0 <= value < 256 for value in values):
        return None
    return bytes(values)


def _sorted(top: tuple[Alternative, ...]) -> tuple[Alternative, ...]:
    return tuple(sorted(top, key=lambda one: -one.logprob))


def _with_texts(tokens: list[WrittenToken], text: str) -> list[WrittenToken]:
    """Return the tokens with their shares of `text`: their pieces, if these are the text; else the
    last one has all of it, as it completes what the others began."""
    if len(tokens) > 1 and "".join(token.piece for token in tokens) == text:
        texts = [token.piece for token in tokens]
    else:
        texts = [*[""] * (len(tokens) - 1), text]
    return [
        WrittenToken(share, token.piece, token.data, token.id, token.logprob, token.top)
        for share, token in zip(texts, tokens, strict=False)
    ]
