"""Conversations longer than the context: the oldest turns are left out, or the oldest tokens.

The field is OpenAI's `truncation` (`/v1/responses`): "disabled" refuses such a conversation, "auto"
drops turns. With "slide", which is ours, a text of any kind goes on while its oldest tokens leave
the context (`gpu.kv.context_shift`): the engine does that.

A turn is what the user says and the answers to it, with calls of tools and their results; it is
dropped whole. System messages and the last turn stay.

A server is sent the whole conversation with every message. If each dropped one turn more, every
prompt would begin differently, and the prefix cache would find nothing. So turns are dropped in
steps of a quarter of the context (llama.cpp's context shift drops half): the following prompts
begin with the same turn, until the context is full again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple, TypeVar

from app.prompt.chat_template import as_turn
from app.prompt.conversation import Turn
from app.protocol.messages import Message, Truncation
from gpu import ATTENTION_SINKS

AnyMessage = TypeVar("AnyMessage", Message, Turn)
SHARES = 4
"""One part in so many of the context is kept free for the answer, and dropped at a time."""


class Room(NamedTuple):
    """Tokens that a text may have, and of the answer at most."""

    context: int
    max_tokens: int

    @property
    def step(self) -> int:
        """Fewest tokens that are dropped at a time."""
        return max(1, self.context // SHARES)

    @property
    def prompt(self) -> int:
        """Tokens of a prompt that leaves room for the answer, or for the beginning of a long
        one."""
        return self.context - max(1, min(self.max_tokens, self.step))


class Truncated(NamedTuple):
    """Token ids of a conversation, and the indexes of the messages that were left out."""

    ids: list[int]
    dropped: tuple[int, ...] = ()


def read_conversation(
    messages: Sequence[AnyMessage],
    encode: Callable[[Sequence[AnyMessage]], list[int]],
    room: Room,
    truncation: Truncation,
) -> Truncated:
    """Return the ids of a conversation, with `truncation` "auto" without as many of its oldest
    turns as it is too long. `encode` returns the ids of messages. A last turn that is too long by
    itself is returned as it is. Raises what `encode` raises."""
    ids = encode(messages)
    excess = len(ids) - room.prompt
    turns = split_turns(messages)
    if truncation != "auto" or excess <= 0 or len(turns) < 2:
        return Truncated(ids)

    @cache
    def ids_without(n: int) -> list[int]:
        left_out = {i for turn in turns[:n] for i in turn}
        return encode([message for i, message in enumerate(messages) if i not in left_out])

    wanted = -(-excess // room.step) * room.step
    numbers = range(1, len(turns) - 1)  # if none of these is enough, all turns but the last
    n = 1 + bisect_left(numbers, wanted, key=lambda n: len(ids) - len(ids_without(n)))
    return Truncated(ids_without(n), tuple(i for turn in turns[:n] for i in turn))


def n_keep(truncation: Truncation) -> int | None:
    """Return `Request.n_keep` for a truncation."""
    return ATTENTION_SINKS if truncation == "slide" else None


def split_turns(messages: Sequence[Message | Turn]) -> list[list[int]]:
    """Return the indexes of the messages of each turn, without system messages. The first turn
    begins with the first message, each other with what the user says after an answer."""
    turns: list[list[int]] = []
    before = ""
    for i, role in enumerate(as_turn(message)["role"] for message in messages):
        if role == "system":
            continue
        if not turns or (role == "user" and before != "user"):
            turns.append([])
        turns[-1].append(i)
        before = role
    return turns
