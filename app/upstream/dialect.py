"""Fields that the known upstreams understand in addition to OpenAI's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

MAX_LOGPROBS = 20
"""Most candidates that chat completions of OpenAI and every other server can return."""


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """Differences of one kind of server.

    settings       names of our sampling settings that OpenAI does not have
    chat_settings  those that chats have; None: the same
    unknown        sampling settings of OpenAI's that it does not have
    extras         fields of every request
    going_on       fields that make the model go on with the last message; None: it cannot
    n_top, n_chat_top
                   candidates of a token in a completion, and in a chat
    max_seed       largest seed; has_seed_0: 0 is one
        penalised_top  it returns candidates of runs with penalties or biases
    cache_salt     it knows `Request.cache_salt`
    grammars       kinds of grammars that it knows besides a JSON schema
    native         TGI: plain texts go to `/generate_stream` (app/upstream/tgi.py). A stream begins
                   before the request is checked, and stop strings are left in the text
    """

    name: str
    settings: Mapping[str, str] = field(default_factory=dict)
    chat_settings: Mapping[str, str] | None = None
    unknown: tuple[str, ...] = ()
    extras: Mapping[str, Any] = field(default_factory=dict)
    going_on: Mapping[str, Any] | None = None
    n_top: int = MAX_LOGPROBS
    n_chat_top: int = MAX_LOGPROBS
    max_seed: int = 2**31 - 1
    has_seed_0: bool = True
    penalised_top: bool = True
    cache_salt: bool = False
    grammars: tuple[str, ...] = ()
    native: bool = False

    def settings_of(self, *, chat: bool) -> Mapping[str, str]:
        """Return `settings` of chats, or of completions."""
        if chat and self.chat_settings is not None:
            return self.chat_settings
        return self.settings


EXTENSION_SETTINGS = {name: name for name in ("top_k", "min_p", "repetition_penalty", "ignore_eos")}
"""Names of the sampling settings that OpenAI does not have and most servers call as we do."""
OPENAI = Dialect(name="OpenAI-compatible server", n_top=5)
VLLM = Dialect(
    name="vLLM",
    settings=EXTENSION_SETTINGS,
    extras={"return_token_ids": True},
    going_on={"continue_final_message": True, "add_generation_prompt": False},
    max_seed=2**63 - 1,
    cache_salt=True,
    grammars=("regex",),
)
LLAMA_SERVER = Dialect(
    name="llama-server",
    settings={**EXTENSION_SETTINGS, "repetition_penalty": "repeat_penalty"},
    going_on={},
)
TOKENGLASS = Dialect(
    name="Tokenglass",
    settings=EXTENSION_SETTINGS,
    extras={"return_token_ids": True},
    going_on={"continue_final_message": True},
    max_seed=2**64 - 1,
    penalised_top=False,
    cache_salt=True,
    grammars=("regex",),
)

TGI = Dialect(
    name="TGI",
    settings={name: name for name in ("top_k", "repetition_penalty", "watermark_bias")},
    chat_settings={},
    unknown=("presence_penalty",),
    extras={"model": "tgi"},  # any other name is one of an adapter
    n_top=5,
    n_chat_top=5,
    max_seed=2**63 - 1,
    has_seed_0=False,
    grammars=("regex",),
    native=True,
)


class ServedModel(msgspec.Struct, frozen=True):
    """Entry of `/v1/models`, or what TGI's `/info` says. `meta` is llama-server's and ours;
    `max_model_len` vLLM's and ours."""

    id: str
    owned_by: str = ""
    max_model_len: int | None = None
    meta: dict[str, Any] | None = None

    @property
    def dialect(self) -> Dialect:
        match self.owned_by:
            case "vllm":
                return VLLM
            case "llamacpp":
                return LLAMA_SERVER
            case "tgi":
                return TGI
            case "local" if "kv_formats" in (self.meta or {}):
                return TOKENGLASS
        return OPENAI

    @property
    def context(self) -> int | None:
        """Tokens of one text at most; None if the upstream does not say. llama-server tells what it
        was started with, or else what the model was trained with."""
        meta = self.meta or {}
        found = self.max_model_len or meta.get("n_ctx") or meta.get("n_ctx_train")
        return found if isinstance(found, int) and found > 1 else None


class ModelList(msgspec.Struct, frozen=True):
    data: list[ServedModel]
