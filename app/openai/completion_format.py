"""Format of `/v1` responses: completions and chat completions, whole or streamed."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from app.openai.logprobs import ChatLogprobs, TextLogprobs, joined
from app.prompt.tool_calls.writer import ToolCallWriter
from gpu.events import Done, Token

FINISH_REASONS = {"eos": "stop", "stop": "stop", "length": "length", "context": "length"}


@dataclass(frozen=True)
class Echo:
    """A prompt that stands before the text of its choices, and its `logprobs` if they are given."""

    text: str
    logprobs: dict[str, Any] | None = None


NO_ECHO = Echo("")


@dataclass(frozen=True)
class WholeChoice:
    """A choice that has ended."""

    index: int
    tokens: list[Token]
    done: Done

    @property
    def text(self) -> str:
        return "".join(token.text for token in self.tokens)

    @property
    def mean_logprob(self) -> float:
        """Mean log-probability of a token: what `best_of` compares, as OpenAI documents. The
        lowest of all if it is not known."""
        mean = sum(token.logprob for token in self.tokens) / max(1, len(self.tokens))
        return -math.inf if math.isnan(mean) else mean


def without_eos(tokens: Sequence[Token]) -> list[Token]:
    """Return all tokens but the one that ends the text."""
    return [token for token in tokens if not token.eos]


@dataclass(frozen=True)
class CompletionFormat:
    """Differences between completions and chat completions, for one response.

    delta, whole  return the content of a choice for a piece of text and for the whole text
    tools         one writer for each choice, which takes the place of `delta` and `whole`; None if
                  the model was given no tools
    logprobs      one for each choice; None if not requested
    first         content of a choice's first chunk, if there is one before any token
    echoes        one for each prompt; () if they are not repeated
    n_runs        choices written for each prompt
    n_dropped     messages that were left out because the conversation was too long
    token_ids     choices have the ids of their tokens
    scores_eos    `logprobs` have the token that ends the text
    """

    id: str
    object: str
    chunk_object: str
    model: str
    delta: Callable[[str], dict[str, Any]]
    whole: Callable[[str], dict[str, Any]]
    logprobs: Sequence[TextLogprobs | ChatLogprobs] | None
    first: dict[str, Any] | None
    echoes: Sequence[Echo] = ()
    n_runs: int = 1
    tools: Sequence[ToolCallWriter] | None = None
    n_dropped: int = 0
    token_ids: bool = False
    scores_eos: bool = False

    def added(self, index: int, token: Token) -> dict[str, Any] | None:
        """Return the content that a token adds to the choice `index`; None if there is none yet."""
        if self.tools is None:
            return self.delta(token.text) if token.text else None
        delta = self.tools[index].push(token)
        return {"delta": delta} if delta else None

    def kept(self, token: Token) -> Token:
        """Return a token as it is kept until its text has ended: without its candidates, which are
        most of its bytes, unless the answer tells some. A request may write millions of tokens."""
        if self.logprobs and self.logprobs[0].n_top:
            return token
        return msgspec.structs.replace(token, candidates=())

    def rest(self, index: int) -> dict[str, Any]:
        """Return the content of the last chunk of the choice `index`."""
        return self.delta("") if self.tools is None else {"delta": self.tools[index].finish()}

    def finish_reason(self, index: int, done: Done) -> str:
        """Return why the choice `index` ended. Ask once all its text was written."""
        reason = FINISH_REASONS[done.reason]
        called = self.tools is not None and self.tools[index].has_calls
        return "tool_calls" if called and reason == "stop" else reason

    def begin(self, index: int) -> dict[str, Any] | None:
        """Return the first chunk of the choice `index`, if there is one before any token."""
        content, logprobs = self.first, None
        if self.echoes:
            echo = self._echo(index)
            content, logprobs = {"text": echo.text}, echo.logprobs
        if content is None:
            return None
        choice = {"index": index, **content, "logprobs": logprobs, "finish_reason": None}
        return self.frame(self.chunk_object, [choice | self._token_ids([])])

    def chunk(
        self, index: int, content: dict[str, Any], tokens: list[Token], finish: str | None
    ) -> dict[str, Any]:
        """Return a chunk of the choice `index`."""
        scored = self._scored(tokens)
        logprobs = self._logprobs(index, scored) if scored else None
        choice = {"index": index, **content, "logprobs": logprobs, "finish_reason": finish}
        return self.frame(self.chunk_object, [choice | self._token_ids(tokens)])

    def answer(self, choices: Sequence[WholeChoice]) -> dict[str, Any]:
        """Return the response of the choices to return, in their order."""
        return self.frame(
            self.object,
            [
                {
                    "index": i,
                    **self._content(choice),
                    "logprobs": self._whole_logprobs(choice),
                    "finish_reason": self.finish_reason(choice.index, choice.done),
                    **self._token_ids(choice.tokens),
                }
                for i, choice in enumerate(choices)
            ],
        )

    def _content(self, choice: WholeChoice) -> dict[str, Any]:
        if self.tools is None:
            return self.whole(self._echo(choice.index).text + choice.text)
        return {"message": self.tools[choice.index].message(without_eos(choice.tokens))}

    def _echo(self, index: int) -> Echo:
        return self.echoes[index // self.n_runs] if self.echoes else NO_ECHO

    def _whole_logprobs(self, choice: WholeChoice) -> dict[str, Any] | None:
        written = self._logprobs(choice.index, self._scored(choice.tokens))
        echoed = self._echo(choice.index).logprobs
        return written if echoed is None or written is None else joined(echoed, written)

    def _scored(self, tokens: list[Token]) -> list[Token]:
        """Return the tokens that have log-probabilities in the answer."""
        return tokens if self.scores_eos else without_eos(tokens)

    def _token_ids(self, tokens: list[Token]) -> dict[str, Any]:
        return {"token_ids": [token.id for token in tokens]} if self.token_ids else {}

    def _logprobs(self, index: int, tokens: list[Token]) -> dict[str, Any] | None:
        if self.logprobs is None or any(math.isnan(token.logprob) for token in tokens):
            return None  # an upstream gave none, and JSON has no NaN
        return self.logprobs[index].of(tokens)

    def frame(self, object: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """Return a response, or a chunk of one, with these choices."""
        frame = {
            "id": self.id,
            "object": object,
            "created": int(time.time()),
            "model": self.model,
            "choices": choices,
        }
        return frame | {"dropped_messages": self.n_dropped} if self.n_dropped else frame


def completion_format(
    model: str,
    echoes: Sequence[Echo],
    logprobs: Sequence[TextLogprobs] | None,
    *,
    n_runs: int,
    token_ids: bool,
) -> CompletionFormat:
    """Return the format for `/v1/completions`.

    The token that ends the text has its log-probability, as in vLLM: lm-evaluation-harness takes
    the last one for that of the only token written, and leaves it out.
    """
    return CompletionFormat(
        id=f"cmpl-{secrets.token_hex(12)}",
        object="text_completion",
        chunk_object="text_completion",
        model=model,
        delta=lambda text: {"text": text},
        whole=lambda text: {"text": text},
        logprobs=logprobs,
        first=None,
        echoes=echoes,
        n_runs=n_runs,
        token_ids=token_ids,
        scores_eos=True,
    )


def chat_format(
    model: str,
    logprobs: Sequence[ChatLogprobs] | None,
    tools: Sequence[ToolCallWriter] | None = None,
    n_dropped: int = 0,
    n_runs: int = 1,
    *,
    token_ids: bool = False,
) -> CompletionFormat:
    """Return the format for `/v1/chat/completions`. `n_dropped`: messages left out."""
    return CompletionFormat(
        id=f"chatcmpl-{secrets.token_hex(12)}",
        object="chat.completion",
        chunk_object="chat.completion.chunk",
        model=model,
        delta=lambda text: {"delta": {"content": text} if text else {}},
        whole=lambda text: {"message": {"role": "assistant", "content": text, "refusal": None}},
        logprobs=logprobs,
        first={"delta": {"role": "assistant", "content": "" if tools is None else None}},
        tools=tools,
        n_dropped=n_dropped,
        n_runs=n_runs,
        token_ids=token_ids,
    )


def usage(done: Sequence[Done], n_runs: int = 1) -> dict[str, Any]:
    """Return the tokens of a request from the ends of its runs, `n_runs` of each prompt. A prompt
    counts once; `cached_tokens` are those that its first run found in the KV cache, `moved_tokens`
    those of them that were moved from another text."""
    first = done[::n_runs]
    prompt = sum(one.prompt_tokens for one in first)
    completion = sum(one.completion_tokens for one in done)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {
            "cached_tokens": sum(one.timings.cache_n for one in first),
            "moved_tokens": sum(one.timings.cache_moved_n for one in first),
        },
    }


def timings(done: Done) -> dict[str, Any]:
    """Return `timings` in the format of llama-server, plus our own fields."""
    fields: dict[str, Any] = msgspec.to_builtins(done.timings)
    return {
        **fields,
        "prompt_per_token_ms": done.timings.prompt_ms / max(1, done.timings.prompt_n),
        "predicted_per_token_ms": done.timings.predicted_ms / max(1, done.timings.predicted_n),
    }
