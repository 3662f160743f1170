"""Messages of chat requests, and the turns that the chat template gets of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from app.prompt.conversation import Turn
from app.prompt.turns import conversation_turns
from app.protocol.messages import Message
from app.protocol.tools import CalledFunction, ToolCall
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


class ChatFunction(CalledFunction, frozen=True, forbid_unknown_fields=True):
    """Called function as clients send it back. `parsed_arguments`, which they add, is ignored."""

    parsed_arguments: Any = None


class ChatToolCall(ToolCall, frozen=True, forbid_unknown_fields=True):
    """Call as clients send it back. `index`, of chunks of a stream, is ignored."""

    function: ChatFunction
    index: int | None = None


class ChatMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Message of a conversation.

    Clients send an answer back with every field of their own types. `annotations` and `parsed` are
    ignored, and `name` but for the messages of tools, because the model does not read them; so is
    the `type` that lm-evaluation-harness ("text") and the Responses API ("message") give.
    """

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    tool_calls: list[ChatToolCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    annotations: list[Any] | None = None
    parsed: Any = None
    type: Literal["text", "message"] | None = None

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

    def plain(self, path: str) -> Message:
        """Return the message as the page sends one. Raises `InvalidRequest` for fields of the
        message at `path` that are not supported."""
        for name, instead in UNSUPPORTED_MESSAGE_FIELDS.items():
            if getattr(self, name) not in (None, ""):
                raise InvalidRequest(
                    f"a message's {name} must be null or empty: {instead}", f"{path}.{name}"
                )
        if self.content is None and not self.tool_calls:
            raise InvalidRequest(
                "content must be a text or a list of text parts; only an assistant's message with "
                "tool_calls may be without",
                f"{path}.content",
            )
        role = "system" if self.role == "developer" else self.role
        calls: list[ToolCall] | None = [*self.tool_calls] if self.tool_calls else None
        return Message(role, self.text, calls, self.tool_call_id, self.name)


def turns_of(messages: Sequence[ChatMessage]) -> list[Turn]:
    """Return the turns of a conversation.

    Raises `InvalidRequest` for a message that is not allowed in its place, naming its path.
    """
    return conversation_turns([each.plain(f"messages[{i}]") for i, each in enumerate(messages)])


def check_template_fields(add_generation_prompt: bool, continue_final: bool) -> None:
    """Raise `InvalidRequest` for a prompt that ends where no answer begins. vLLM's clients that go
    on with the last message have to switch `add_generation_prompt` off."""
    if not add_generation_prompt and not continue_final:
        raise InvalidRequest(
            "add_generation_prompt false is not supported: prompts end where the answer begins; "
            "leave it out, or send continue_final_message to go on with the last message",
            "add_generation_prompt",
        )
