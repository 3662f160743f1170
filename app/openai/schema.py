"""Requests of the OpenAI-compatible API and their fields, apart from HTTP.

A field that would change the answer and is not supported is refused by name, unless it has the
value that changes nothing. Fields that never change the answer (`user`, `metadata` …) are accepted
and ignored. Any other field is unknown and refused.

Settings left out take the values that the model's makers recommend. `max_tokens` is the exception:
16 for completions, as the API documents, and the rest of the context for chat.

As with vLLM, an adapter is a model: `model` names the base model or an adapter. `loras`, an
extension, blends adapters: their strengths by name, 0 is off and 1 as trained. `priority` is
vLLM's: a larger number is served later.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from app.http.errors import ModelNotFoundError
from app.openai.messages import ChatMessage, check_template_fields, turns_of
from app.openai.structured_outputs import Constraint, StructuredFields
from app.prompt import conversation
from app.prompt.conversation import Turn
from app.prompt.tools import offered_tools
from app.prompt.truncation import n_keep
from app.protocol.messages import Truncation
from app.protocol.tools import MAX_TOOLS, Tool, ToolChoice
from gpu import (
    SAMPLING_SETTINGS,
    Interventions,
    InvalidRequest,
    LoraStrength,
    ModelInfo,
    Request,
    SamplingParams,
    TokenBias,
)

MAX_LOGPROBS = 20
MAX_PRIORITY = 1000
MAX_CHOICES = 16
MAX_CHUNK_TOKENS = 2**26
MAX_SALT = 256
COMPLETION_MAX_TOKENS = 16
NO_LIMIT = -1
"""`max_tokens` of a text that may go on until the context is full, as in llama-server."""
SMALLEST_GIVEN = {"seed": -(2**63), "top_k": -1, "max_tokens": NO_LIMIT}
"""Smallest values that clients may send, where the engine's own begin at 0."""

PENALTIES = [setting for setting in SAMPLING_SETTINGS if setting.declared.stage == "penalty"]
NO_PENALTIES = {penalty.name: penalty.declared.neutral for penalty in PENALTIES}


def expect_served(name: str, model: ModelInfo) -> None:
    """Raise `ModelNotFoundError` unless `name` is the model or one of its adapters."""
    adapters = [lora.name for lora in model.loras]
    if name == model.name or name in adapters:
        return
    others = f" with the adapters {', '.join(adapters)}" if adapters else ""
    raise ModelNotFoundError(
        f"the loaded model is {model.name!r}{others}, not {name!r}; name that, or leave model out",
        "model",
    )


CacheSalt = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_SALT)]


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    include_usage: bool = False
    include_obfuscation: bool = False


_OPTIONAL_SETTINGS = [
    setting
    for setting in SAMPLING_SETTINGS
    if setting.name not in ("max_tokens", "first_index")  # the API's own, and not for clients
]
if TYPE_CHECKING:
    _SamplingFields = StructuredFields
else:
    _SamplingFields = msgspec.defstruct(
        "_SamplingFields",
        [(setting.name, setting.type | None, None) for setting in _OPTIONAL_SETTINGS],
        bases=(StructuredFields,),
        kw_only=True,
    )


class RunRequest(_SamplingFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields of all requests that start runs, without the sampling settings. None: the default."""

    model: str | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool = False
    stream: bool = False
    stream_options: StreamOptions | None = None
    loras: dict[str, float] | None = None
    priority: Annotated[int, msgspec.Meta(ge=0, le=MAX_PRIORITY)] = 0
    """Requests with a larger one are served later; nobody can get ahead of the default."""

    cache_reuse: Annotated[int, msgspec.Meta(ge=0, le=MAX_CHUNK_TOKENS)] | None = None
    """Fewest tokens of a chunk that is reused although the text before it changed, as
    llama-server's `n_cache_reuse`; 0: none."""

    cache_salt: CacheSalt | None = None
    """Reuse the KV cache of requests with the same salt only; vLLM's. Without it: of the same
    client."""

    n: Annotated[int, msgspec.Meta(ge=1, le=MAX_CHOICES)] | None = None
    """Choices to return."""

    return_token_ids: bool = False
    """Give the ids of the tokens too, as `token_ids` of each choice; vLLM's."""

    logit_bias: dict[str, float] | None = None
    """Numbers that are added to the logits of tokens, by token id."""

    # Ignored: they never change the answer.
    user: str | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: Any = None
    prompt_cache_retention: str | None = None

    def _neutral(self) -> dict[str, tuple[Any, ...]]:
        """Return the values that change nothing, by field; the last one is for error messages."""
        return {}

    @property
    def n_top(self) -> int | None:
        """Likeliest tokens that get log-probabilities; None: not even the token itself does."""
        return None

    def run(
        self,
        ids: list[int],
        params: SamplingParams,
        interventions: Interventions,
        truncation: Truncation = "disabled",
    ) -> Request:
        """Return the engine's request for these token ids and settings."""
        return Request(
            ids,
            params,
            interventions=interventions,
            priority=self.priority,
            cache_reuse=self.cache_reuse,
            cache_salt=self.cache_salt or "",
            n_keep=n_keep(truncation),
        )

    def interventions(self, model: ModelInfo) -> Interventions:
        """Return the adapters to apply.

        Raises `ModelNotFoundError` for a model that is not loaded, and InvalidRequest for an
        adapter that is not loaded or for `loras` together with an adapter in `model`.
        """
        loaded = [lora.name for lora in model.loras]
        named = self.model is not None and self.model != model.name
        if self.model is not None:
            expect_served(self.model, model)
        if named and self.loras is not None:
            raise InvalidRequest("model already names an adapter; leave loras out", "loras")
        for name in self.loras or {}:
            if name not in loaded:
                raise InvalidRequest(
                    f"there is no adapter {name!r:.80}; loaded: {', '.join(loaded) or 'none'}",
                    "loras",
                )
        strengths = {self.model or "": 1.0} if named else self.loras or {}
        return Interventions(loras=tuple(LoraStrength(*item) for item in strengths.items()))

    def sampling(self, defaults: SamplingParams, max_tokens: int) -> SamplingParams:
        """Return the validated settings; raises `InvalidRequest` naming the field."""
        for name, neutral in self._neutral().items():
            value = getattr(self, name)
            if value not in neutral:
                send = msgspec.json.encode(neutral[-1]).decode()
                raise InvalidRequest(f"{name} is not supported; leave it out, or send {send}", name)
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("stream_options needs stream: true", "stream_options")
        settings = {setting.name: getattr(self, setting.name) for setting in _OPTIONAL_SETTINGS}
        given = engine_settings(settings)
        if self.n_top:  # their log-probabilities are not known after a penalty
            defaults = msgspec.structs.replace(defaults, **NO_PENALTIES)
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        return msgspec.structs.replace(
            defaults,
            **given,
            stop=stop,
            ignore_eos=self.ignore_eos,
            max_tokens=max_tokens,
            logit_bias=tuple(_biases(self.logit_bias or {})),
        ).validate()


def engine_settings(given: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that are given, not None, as the engine takes them.

    Clients that cannot leave a field out send −1: as `top_k` it keeps all tokens (vLLM), as `seed`
    it asks for a random one (vLLM, llama-server). Other negative seeds, which OpenAI's 64-bit
    integers may be, are those that the same bits are without a sign.
    """
    settings = {name: value for name, value in given.items() if value is not None}
    if settings.get("top_k") == -1:
        settings["top_k"] = 0
    seed = settings.get("seed", 0)
    if seed == -1:
        del settings["seed"]
    elif SMALLEST_GIVEN["seed"] <= seed < 0:
        settings["seed"] = seed % 2**64
    return settings


def _biases(by_id: dict[str, float]) -> Iterator[TokenBias]:
    for id, bias in by_id.items():
        if not re.fullmatch("[0-9]{1,10}", id):
            raise InvalidRequest(
                f"logit_bias maps token ids to numbers, but {id!r:.80} is not an id", "logit_bias"
            )
        yield TokenBias(int(id), bias)


class CompletionRequest(RunRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    prompt: str | list[int | str | list[int]]
    """A text, token ids, or several of either: each has its own choices."""

    truncation: Literal["disabled", "slide"] = "disabled"
    """What to do when the context is full."""

    max_tokens: int | None = None
    logprobs: int | None = None
    echo: bool = False
    suffix: str | None = None
    best_of: Annotated[int, msgspec.Meta(ge=1, le=MAX_CHOICES)] | None = None
    """Choices to write, of which the `n` with the largest mean log-probability are returned."""

    def _neutral(self) -> dict[str, tuple[Any, ...]]:
        return {**super()._neutral(), "suffix": (None, "")}

    @property
    def n_runs(self) -> int:
        """Choices to write. Raises `InvalidRequest` for a `best_of` that cannot be."""
        n = self.n or 1
        if self.best_of is None:
            return n
        if self.best_of < n:
            raise InvalidRequest(
                f"best_of must be at least n, which is {n}, but got {self.best_of}", "best_of"
            )
        if self.stream and self.best_of > n:
            raise InvalidRequest(
                "the best choice is known only when all have ended; leave out best_of or stream",
                "best_of",
            )
        return self.best_of

    def params(self, defaults: SamplingParams, context: int) -> SamplingParams:
        max_tokens = COMPLETION_MAX_TOKENS if self.max_tokens is None else self.max_tokens
        max_tokens = context if max_tokens == NO_LIMIT else max_tokens
        if not self.writes and self.stream:
            raise InvalidRequest(
                "max_tokens 0 writes nothing that could be streamed; leave out stream", "stream"
            )
        return self.sampling(defaults, max_tokens if self.writes else 1)

    @property
    def writes(self) -> bool:
        """Whether anything is written after the prompt."""
        return self.max_tokens != 0

    @property
    def scores_prompt(self) -> bool:
        """Whether the tokens of the prompt get log-probabilities."""
        return self.echo and self.logprobs is not None

    @property
    def n_top(self) -> int | None:
        return self.logprobs


class ChatRequest(RunRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    messages: list[ChatMessage]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    truncation: Truncation = "disabled"
    """What to do with messages that are too long for the context, as in `/v1/responses`, and when
    it is full."""

    tools: Annotated[list[Tool], msgspec.Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: list[Any] | None = None
    function_call: Any = None
    modalities: list[str] | None = None
    audio: Any = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    web_search_options: Any = None
    prediction: Any = None
    moderation: Any = None

    def _neutral(self) -> dict[str, tuple[Any, ...]]:
        return {
            **super()._neutral(),
            "functions": (None, []),
            "function_call": (None, "auto", "none"),
            "modalities": (None, ["text"]),
            "audio": (None,),
            "reasoning_effort": (None, "none"),
            "verbosity": (None, "medium"),
            "web_search_options": (None,),
            "prediction": (None,),
            "moderation": (None,),
        }

    def turns(self) -> list[Turn]:
        """Return the conversation; raises `InvalidRequest` for messages that are wrong."""
        check_template_fields(self.add_generation_prompt, self.continue_final_message)
        return turns_of(self.messages)

    def offered_tools(self) -> list[conversation.Tool]:
        """Return the tools that the model gets to see; raises `InvalidRequest`."""
        return offered_tools(self.tools or (), self.tool_choice)

    def constraint(self) -> Constraint | None:
        found = super().constraint()
        if found is not None and self.offered_tools():
            raise InvalidRequest(
                f"an answer that follows {found.field} cannot call tools; leave tools out, or send "
                'tool_choice: "none"',
                found.field,
            )
        return found

    @property
    def n_runs(self) -> int:
        """Choices to write."""
        return self.n or 1

    def params(self, defaults: SamplingParams, context: int) -> SamplingParams:
        given = [n for n in (self.max_completion_tokens, self.max_tokens) if n is not None]
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequest("top_logprobs needs logprobs: true", "top_logprobs")
        max_tokens = given[0] if given else NO_LIMIT
        return self.sampling(defaults, context if max_tokens == NO_LIMIT else max_tokens)

    @property
    def n_top(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


def check_logprobs(n_top: int | None, params: SamplingParams, param: str) -> None:
    """Raise `InvalidRequest` unless the log-probabilities of `n_top` tokens can be given."""
    if n_top is None:
        return
    if not 0 <= n_top <= MAX_LOGPROBS:
        raise InvalidRequest(
            f"{param} must be an integer from 0 to {MAX_LOGPROBS}, but got {n_top}", param
        )
    if n_top > 0 and params.logit_bias:
        raise InvalidRequest(
            f"{param} above 0 needs a request without logit_bias: log-probabilities are the "
            "model's own, and the most likely tokens are known only after the bias",
            param,
        )
    for penalty in PENALTIES:
        if n_top > 0 and getattr(params, penalty.name) != penalty.declared.neutral:
            raise InvalidRequest(
                f"{param} above 0 needs {penalty.name} {penalty.declared.neutral:g}: "
                "log-probabilities are the model's own, and those of the other tokens are known "
                "only after the penalty",
                param,
            )


def check_changed(n_top: int | None, before: SamplingParams, after: SamplingParams) -> None:
    """Raise `InvalidRequest` if a change of settings would make the log-probabilities of `n_top`
    tokens wrong."""
    for name in ("temperature", "watermark_bias", *(penalty.name for penalty in PENALTIES)):
        if n_top and getattr(before, name) != getattr(after, name):
            raise InvalidRequest(
                f"{name} cannot change while an answer gives the log-probabilities of the most "
                "likely tokens, because they are computed from its first value",
                name,
            )
