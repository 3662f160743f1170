"""Messages of chat requests, and the turns that the chat template gets of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from app.openai.tools import MAX_DEPTH, is_deeper
from app.prompt.conversation import Turn
from gpu import InvalidRequest

UNSUPPORTED_MESSAGE_FIELDS = {
    "refusal": "the model does not read it; put its text into content",
    "audio": "audio is not supported; send the transcript as content",
    "function_call": "functions are older than tools and not supported; send tool_calls",
}
"""Fields of a message other than its text, and what to do instead."""


class TextPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["text"]
    text: str
    prompt_cache_breakpoint: Any = None


class CalledFunction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Name and arguments of a call. `parsed_arguments`, which the client adds, is ignored."""

    name: str
    arguments: str
    parsed_arguments: Any = None


class ToolCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Call that an assistant's message has. `index`, of chunks of a stream, is ignored."""

    id: str
    function: CalledFunction
    type: Literal["function"] = "function"
    index: int | None = None

    def turn(self) -> dict[str, Any]:
        """Return the call as chat templates read it: with the arguments as an object.

        Arguments that are no JSON object stay a text. Models write such, and learn it from the
        program that called them; that conversation must go on.
        """
        arguments: Any = self.function.arguments
        try:
            value = msgspec.json.decode(arguments.strip() or "{}")
        except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
            value = None
        if isinstance(value, dict) and not is_deeper(value, MAX_DEPTH):
            arguments = value
        function = {"name": self.function.name, "arguments": arguments}
        return {"id": self.id, "type": "function", "function": function}


class ChatMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Message of a conversation.

    Clients send an answer back with every field of their own types. `annotations` and `parsed` are
    ignored, and `name` but for the messages of tools, because the model does not read them.
    """

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    annotations: list[Any] | None = None
    parsed: Any = None

    # Accepted only when null or empty.
    refusal: str | None = None
    audio: Any = None
    function_call: Any = None

    @property
    def text(self) -> str:
        """The content, "" if it is null."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""

    def check(self, path: str) -> None:
        """Raise `InvalidRequest` for fields of the message at `path` that are wrong for its
        role."""
        for name, instead in UNSUPPORTED_MESSAGE_FIELDS.items():
            if getattr(self, name) not in (None, ""):
                raise InvalidRequest(
                    f"a message's {name} must be null or empty: {instead}", f"{path}.{name}"
                )
        if self.tool_calls and self.role != "assistant":
            raise InvalidRequest(
                f"only an assistant's message has tool_calls, but its role is {self.role}",
                f"{path}.tool_calls",
            )
        if self.content is None and not self.tool_calls:
            raise InvalidRequest(
                "content must be a text or a list of text parts; only an assistant's message with "
                "tool_calls may be without",
                f"{path}.content",
            )
        if (self.tool_call_id is None) == (self.role == "tool"):
            raise InvalidRequest(
                "tool_call_id, the id of the call that is answered, belongs in every message of "
                "the role tool and in no other",
                f"{path}.tool_call_id",
            )


def conversation_turns(messages: Sequence[ChatMessage]) -> list[Turn]:
    """Return the turns of a conversation.

    Raises `InvalidRequest` for a message that is not allowed in its place, naming its path.
    """
    names: dict[str, str] = {}  # of the functions, by the ids of their calls
    turns: list[Turn] = []
    for i, message in enumerate(messages):
        path = f"messages[{i}]"
        message.check(path)
        role = "system" if message.role == "developer" else message.role
        turn: Turn = {"role": role, "content": message.text}
        if message.tool_calls:
            turn["tool_calls"] = [call.turn() for call in message.tool_calls]
            _check_ids(message.tool_calls, path)
            names |= {call.id: call.function.name for call in message.tool_calls}
        if message.tool_call_id is not None:
            turn |= _answered(message, names, path)
        turns.append(turn)
    return turns


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


def _answered(message: ChatMessage, names: dict[str, str], path: str) -> Turn:
    """Return what a tool's message says about the call that it answers."""
    id = message.tool_call_id or ""
    if id not in names:
        raise InvalidRequest(
            f"no call before this message has the id {id!r:.80}; send the assistant's message with "
            "its tool_calls first",
            f"{path}.tool_call_id",
        )
    return {"tool_call_id": id, "name": message.name or names[id]}
