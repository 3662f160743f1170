"""From what a person wrote to token ids."""

from __future__ import annotations

from collections.abc import Sequence

from app.engines import Tokenizer
from app.protocol import Message
from gpu.errors import InvalidRequest


def prompt_ids(
    tokenizer: Tokenizer,
    prompt: str | None = None,
    messages: Sequence[Message] | None = None,
    ids: list[int] | None = None,
    *,
    continue_final: bool = False,
) -> list[int]:
    if sum(given is not None for given in (prompt, messages, ids)) != 1:
        raise InvalidRequest("give exactly one of prompt, messages or ids", "prompt")
    if ids is not None:
        return ids
    if prompt is None:
        raise InvalidRequest("chat is not built yet", "messages")
    return tokenizer.encode(prompt)
