"""Format of `/v1` responses: completions and chat completions, whole or streamed."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from app.openai.logprobs import ChatLogprobs, TextLogprobs
from gpu.events import Done, Token

FINISH_REASONS = {"eos": "stop", "stop": "stop", "length": "length", "context": "length"}


@dataclass(frozen=True)
class ResponseFormat:
    """Differences between completions and chat completions, for one response.

    delta, whole  return the content of a choice for a piece of text and for the whole text
    logprobs      None if not requested
    first         content of the first chunk, if there is one before any token
    prefix        text before the generated text: the echoed prompt
    """

    id: str
    object: str
    chunk_object: str
    model: str
    delta: Callable[[str], dict[str, Any]]
    whole: Callable[[str], dict[str, Any]]
    logprobs: TextLogprobs | ChatLogprobs | None
    first: dict[str, Any] | None
    prefix: str = ""

    def chunk(
        self, content: dict[str, Any], tokens: list[Token], finish: str | None
    ) -> dict[str, Any]:
        logprobs = self.logprobs.of(tokens) if self.logprobs is not None and tokens else None
        choice = {"index": 0, **content, "logprobs": logprobs, "finish_reason": finish}
        return self._frame(self.chunk_object, [choice])

    def answer(self, text: str, tokens: list[Token], done: Done) -> dict[str, Any]:
        logprobs = self.logprobs.of(tokens) if self.logprobs is not None else None
        choice = {
            "index": 0,
            **self.whole(text),
            "logprobs": logprobs,
            "finish_reason": FINISH_REASONS[done.reason],
        }
        return {**self._frame(self.object, [choice]), "usage": usage(done)}

    def _frame(self, object: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": object,
            "created": int(time.time()),
            "model": self.model,
            "choices": choices,
        }


def completion_format(model: str, echo: str, logprobs: TextLogprobs | None) -> ResponseFormat:
    """Return the format for `/v1/completions`. `echo` is the prompt to repeat, or ""."""
    return ResponseFormat(
        id=f"cmpl-{secrets.token_hex(12)}",
        object="text_completion",
        chunk_object="text_completion",
        model=model,
        delta=lambda text: {"text": text},
        whole=lambda text: {"text": text},
        logprobs=logprobs,
        first={"text": echo} if echo else None,
        prefix=echo,
    )


def chat_format(model: str, logprobs: ChatLogprobs | None) -> ResponseFormat:
    """Return the format for `/v1/chat/completions`."""
    return ResponseFormat(
        id=f"chatcmpl-{secrets.token_hex(12)}",
        object="chat.completion",
        chunk_object="chat.completion.chunk",
        model=model,
        delta=lambda text: {"delta": {"content": text} if text else {}},
        whole=lambda text: {"message": {"role": "assistant", "content": text, "refusal": None}},
        logprobs=logprobs,
        first={"delta": {"role": "assistant", "content": ""}},
    )


def usage(done: Done) -> dict[str, Any]:
    return {
        "prompt_tokens": done.prompt_tokens,
        "completion_tokens": done.completion_tokens,
        "total_tokens": done.prompt_tokens + done.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": done.timings.cache_n},
    }


def timings(done: Done) -> dict[str, Any]:
    """Return `timings` in the format of llama-server, plus our own fields."""
    fields: dict[str, Any] = msgspec.to_builtins(done.timings)
    return {
        **fields,
        "prompt_per_token_ms": done.timings.prompt_ms / max(1, done.timings.prompt_n),
        "predicted_per_token_ms": done.timings.predicted_ms / max(1, done.timings.predicted_n),
    }
