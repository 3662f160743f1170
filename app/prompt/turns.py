"""Turns that the chat template gets of messages, with the calls of tools and their results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from app.prompt.conversation import Turn
from app.prompt.tools import MAX_DEPTH, is_deeper
from app.protocol.messages import Message
from app.protocol.tools import ToolCall
from gpu import InvalidRequest


def conversation_turns(messages: Sequence[Message]) -> list[Turn]:
    """Return the turns of a conversation.

    Raises `InvalidRequest` for a message that is not allowed in its place, naming its path.
    """
    names: dict[str, str] = {}  # of the functions, by the ids of their calls
    turns: list[Turn] = []
    for i, message in enumerate(messages):
        path = f"messages[{i}]"
        _check_role(message, path)
        turn: Turn = {"role": message.role, "content": message.content}
        if message.tool_calls:
            turn["tool_calls"] = [_called(call) for call in message.tool_calls]
            _check_ids(message.tool_calls, path)
            names |= {call.id: call.function.name for call in message.tool_calls}
        if message.tool_call_id is not None:
            turn |= _answered(message, names, path)
        turns.append(turn)
    return turns


def _check_role(message: Message, path: str) -> None:
    """Raise `InvalidRequest` for fields that are wrong for the role of a message."""
    if message.tool_calls and message.role != "assistant":
        raise InvalidRequest(
            f"only an assistant's message has tool_calls, but its role is {message.role}",
            f"{path}.tool_calls",
        )
    if (message.tool_call_id is None) == (message.role == "tool"):
        raise InvalidRequest(
            "tool_call_id, the id of the call that is answered, belongs in every message of "
            "the role tool and in no other",
            f"{path}.tool_call_id",
        )


def _called(call: ToolCall) -> dict[str, Any]:
    """Return a call as chat templates read it: with the arguments as an object.

    Arguments that are no JSON object stay a text. Models write such, and learn it from the
    program that called them; that conversation must go on.
    """
    arguments: Any = call.function.arguments
    try:
        value = msgspec.json.decode(arguments.strip() or "{}")
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        value = None
    if isinstance(value, dict) and not is_deeper(value, MAX_DEPTH):
        arguments = value
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}


def _check_ids(calls: Sequence[ToolCall], path: str) -> None:
    """Raise `InvalidRequest` if two calls of one message have the same id."""
    ids: set[str] = set()
    for i, call in enumerate(calls):
        if call.id in ids:
            raise InvalidRequest(
                f"two calls of this message have the id {call.id!r:.80}; give each its own",
                f"{path}.tool_calls[{i}].id",
            )
        ids.add(call.id)


def _answered(message: Message, names: dict[str, str], path: str) -> Turn:
    """Return what a tool's message says about the call that it answers."""
    id = message.tool_call_id or ""
    if id not in names:
        raise InvalidRequest(
            f"no call before this message has the id {id!r:.80}; send the assistant's message with "
            "its tool_calls first",
            f"{path}.tool_call_id",
        )
    return {"tool_call_id": id, "name": message.name or names[id]}
