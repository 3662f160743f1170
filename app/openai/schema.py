"""Requests of the OpenAI-shaped API, without HTTP.

Fields that would change the answer and are not supported are refused by name, at any value but
the one that changes nothing. Fields that never change it (`user`, `metadata` …) are accepted and
ignored. Everything else is unknown and refused. Settings left out are those the model's makers
recommend, except `max_tokens`: 16 for completions, as that API documents, and what the context
holds for chat.

Adapters are models of their own, as with vLLM: `model` names the base or one of them. `loras`, our
own, blends them: strengths by name, 0 is off and 1 as trained.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from app.protocol import Message, ModelInfo
from gpu import Interventions, InvalidRequest, LoraStrength, SamplingParams

MAX_LOGPROBS = 20
COMPLETION_MAX_TOKENS = 16

BESIDE_THE_CONTENT = {
    "refusal": "the model would not read it; put its text into content",
    "audio": "there is no sound here; send its transcript as content",
    "function_call": "functions are not supported; leave the call out, or put it into content",
    "tool_calls": "tools are not supported; leave the calls out, or put them into content",
}
"""Fields of a message that are more than its text, and what to do instead."""


class ModelNotFoundError(InvalidRequest):
    """The request names another model than the one that is loaded."""

    code = "model_not_found"


def expect_served(name: str, model: ModelInfo) -> None:
    """Raise `ModelNotFoundError` unless `name` is the model's or one of its adapters'."""
    there = [lora.name for lora in model.loras]
    if name == model.name or name in there:
        return
    others = f" with its adapters {', '.join(there)}" if there else ""
    raise ModelNotFoundError(
        f"the model here is {model.name!r}{others}, not {name!r}; ask for that, or leave model out",
        "model",
    )


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    include_usage: bool = False
    include_obfuscation: bool = False


class TextPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["text"]
    text: str
    prompt_cache_breakpoint: Any = None


class ChatMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Message of a conversation. Clients send an answer back as they got it, with every field that
    their types give it; `name`, `annotations` and `parsed` are ignored: they are no part of the
    text."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]
    name: str | None = None
    annotations: list[Any] | None = None
    parsed: Any = None

    # Supported only where they say nothing.
    refusal: str | None = None
    audio: Any = None
    function_call: Any = None
    tool_calls: list[Any] | None = None

    def expect_text_alone(self, path: str) -> None:
        """Raise `InvalidRequest` if the message at `path` says something beside its content."""
        for name, instead in BESIDE_THE_CONTENT.items():
            if getattr(self, name) not in (None, "", []):
                raise InvalidRequest(
                    f"a message's {name} must be null or empty: {instead}", f"{path}.{name}"
                )

    def plain(self) -> Message:
        content = self.content
        text = content if isinstance(content, str) else "".join(part.text for part in content)
        return Message("system" if self.role == "developer" else self.role, text)


class _Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What both kinds of completion take."""

    model: str | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool = False
    stream: bool = False
    stream_options: StreamOptions | None = None
    loras: dict[str, float] | None = None

    # Supported only where they change nothing.
    n: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None

    # Never change the answer.
    user: str | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: Any = None
    prompt_cache_retention: str | None = None

    def _neutral(self) -> dict[str, tuple[Any, ...]]:
        return {
            "n": (None, 1),
            "frequency_penalty": (None, 0),
            "presence_penalty": (None, 0),
            "logit_bias": (None, {}),
        }

    def reach(self, model: ModelInfo) -> Interventions:
        """The adapters that act. Raises `ModelNotFoundError` for a model or adapter that is not
        here, and InvalidRequest for two ways of naming adapters at once."""
        there = [lora.name for lora in model.loras]
        named = self.model is not None and self.model != model.name
        if self.model is not None:
            expect_served(self.model, model)
        if named and self.loras is not None:
            raise InvalidRequest("model names an adapter already; leave loras out", "loras")
        for name in self.loras or {}:
            if name not in there:
                raise InvalidRequest(
                    f"there is no adapter {name!r:.80}; loaded: {', '.join(there) or 'none'}",
                    "loras",
                )
        strengths = {self.model or "": 1.0} if named else self.loras or {}
        return Interventions(loras=tuple(LoraStrength(*item) for item in strengths.items()))

    def sampling(self, defaults: SamplingParams, max_tokens: int) -> SamplingParams:
        """Validated settings; raises `InvalidRequest` naming the field."""
        for name, neutral in self._neutral().items():
            value = getattr(self, name)
            if value not in neutral:
                send = "null" if neutral[-1] is None else repr(neutral[-1])
                raise InvalidRequest(f"{name} is not supported; leave it out, or send {send}", name)
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("stream_options goes with stream: true", "stream_options")
        names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        return msgspec.structs.replace(
            defaults, **given, stop=stop, ignore_eos=self.ignore_eos, max_tokens=max_tokens
        ).validate()


class CompletionRequest(_Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    prompt: str | list[int | str]
    max_tokens: int | None = None
    logprobs: int | None = None
    echo: bool = False
    suffix: str | None = None
    best_of: int | None = None

    def _neutral(self) -> dict[str, tuple[Any, ...]]:
        return {**super()._neutral(), "suffix": (None, ""), "best_of": (None, 1)}

    def params(self, defaults: SamplingParams) -> SamplingParams:
        most = COMPLETION_MAX_TOKENS if self.max_tokens is None else self.max_tokens
        if self.echo and self.logprobs is not None:
            raise InvalidRequest(
                "echo and logprobs do not go together here: the prompt's tokens have no "
                "log-probabilities; leave one out",
                "echo",
            )
        return self.sampling(defaults, most)

    def text_or_ids(self) -> tuple[str | None, list[int] | None]:
        """The prompt: one text, or token ids."""
        if isinstance(self.prompt, str):
            return self.prompt, None
        if not self.prompt:
            raise InvalidRequest("the prompt is empty; give at least one token", "prompt")
        ids = [id for id in self.prompt if isinstance(id, int)]
        if ids and len(ids) == len(self.prompt):
            return None, ids
        if len(self.prompt) == 1:
            return str(self.prompt[0]), None
        raise InvalidRequest(
            "prompt must be one text or one list of token ids; send several prompts as "
            "several requests",
            "prompt",
        )

    @property
    def n_top(self) -> int | None:
        return self.logprobs


class ChatRequest(_Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    messages: list[ChatMessage]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    continue_final_message: bool = False
    response_format: dict[str, Any] | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    functions: list[Any] | None = None
    function_call: Any = None
    modalities: list[str] | None = None
    audio: Any = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    web_search_options: Any = None

    def _neutral(self) -> dict[str, tuple[Any, ...]]:
        return {
            **super()._neutral(),
            "response_format": (None, {"type": "text"}),
            "tools": (None, []),
            "tool_choice": (None, "auto", "none"),
            "functions": (None, []),
            "function_call": (None, "auto", "none"),
            "modalities": (None, ["text"]),
            "audio": (None,),
            "reasoning_effort": (None, "none"),
            "verbosity": (None, "medium"),
            "web_search_options": (None,),
        }

    def plain(self) -> list[Message]:
        """The conversation; raises `InvalidRequest` for what is more than text."""
        for at, message in enumerate(self.messages):
            message.expect_text_alone(f"messages[{at}]")
        return [message.plain() for message in self.messages]

    def params(self, defaults: SamplingParams, context: int) -> SamplingParams:
        given = [n for n in (self.max_completion_tokens, self.max_tokens) if n is not None]
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequest("top_logprobs goes with logprobs: true", "top_logprobs")
        return self.sampling(defaults, given[0] if given else context)

    @property
    def n_top(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


def check_logprobs(n_top: int | None, params: SamplingParams, param: str) -> None:
    """How many of the likeliest tokens may be asked for."""
    if n_top is None:
        return
    if not 0 <= n_top <= MAX_LOGPROBS:
        raise InvalidRequest(
            f"{param} must be an integer from 0 to {MAX_LOGPROBS}, but got {n_top}", param
        )
    if n_top > 0 and params.repetition_penalty != 1:
        raise InvalidRequest(
            f"{param} above 0 needs repetition_penalty 1: the log-probabilities are the model's "
            "own, and those of other tokens are known only after the penalty",
            param,
        )
