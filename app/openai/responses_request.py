"""Request of `POST /v1/responses`: text in, text out, and nothing is kept.

The conversation is in `input`, whole, with every request: there is no `previous_response_id`,
because answers are not stored. As in `app.openai.schema`, a field that would change the answer and
is not supported is refused by name.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from app.openai.body import convert
from app.openai.schema import RunRequest
from app.openai.structured_outputs import (
    ANY_OBJECT,
    Constraint,
    JsonObjectFormat,
    JsonSchema,
    TextFormat,
    of_schema,
)
from app.protocol.messages import Message, Truncation
from gpu import Grammar, InvalidRequest, SamplingParams


class TextContent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Part of a message. All but the text is ignored: the model does not read it."""

    type: Literal["input_text", "output_text"]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None
    prompt_cache_breakpoint: Any = None


class InputMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Message of the conversation; an item of an earlier answer's `output` is one, too. `id`,
    `status` and `phase` are ignored."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextContent]
    type: Literal["message"] = "message"
    id: str | None = None
    status: str | None = None
    phase: str | None = None

    def plain(self) -> Message:
        """Return the message as the page sends one."""
        content = self.content
        text = content if isinstance(content, str) else "".join(part.text for part in content)
        return Message("system" if self.role == "developer" else self.role, text)


class ResponseSchemaFormat(JsonSchema, frozen=True, tag_field="type", tag="json_schema"):
    """JSON that follows a schema. In chat the same fields are inside `json_schema`."""


class TextConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: TextFormat | JsonObjectFormat | ResponseSchemaFormat | None = None
    verbosity: Literal["medium"] | None = None


class ResponsesRequest(RunRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`input`: what the user says, or the messages of a conversation. `instructions`: a system
    message before them."""

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    text: TextConfig | None = None
    truncation: Truncation | None = None

    # Accepted only at the values in `_neutral`.
    access_programs: Any = None
    background: bool | None = None
    background_options: Any = None
    context_management: list[Any] | None = None
    conversation: Any = None
    image: Any = None
    include: list[str] | None = None
    max_tool_calls: int | None = None
    moderation: Any = None
    previous_response_id: str | None = None
    prompt: Any = None
    reasoning: dict[str, Any] | None = None
    tool_choice: Any = None
    tools: list[Any] | None = None
    top_logprobs: int | None = None

    # Ignored: without tools it never changes the answer.
    parallel_tool_calls: bool | None = None

    def _neutral(self) -> dict[str, tuple[Any, ...]]:
        return {
            **super()._neutral(),
            "access_programs": (None,),
            "background": (None, False),
            "background_options": (None,),
            "context_management": (None, []),
            "conversation": (None,),
            "grammar": (None, ""),
            "image": (None,),
            "include": (None, []),
            "json_schema": (None,),
            "max_tool_calls": (None,),
            "moderation": (None,),
            "n": (None, 1),
            "previous_response_id": (None,),
            "prompt": (None,),
            "reasoning": (None, {}, {"effort": "none"}),
            "response_format": (None,),
            "store": (None, False),
            "structured_outputs": (None,),
            "tool_choice": (None, "auto", "none"),
            "tools": (None, []),
            "top_logprobs": (None, 0),
        }

    def params(self, defaults: SamplingParams, context: int) -> SamplingParams:
        """Return the validated settings; raises `InvalidRequest` naming the field."""
        return self.sampling(defaults, min(self.max_output_tokens or context, context))

    def constraint(self) -> Constraint | None:
        """Return what the answer must follow; None: nothing."""
        match None if self.text is None else self.text.format:
            case JsonObjectFormat():
                return Constraint(Grammar("json_schema", ANY_OBJECT), "text.format")
            case ResponseSchemaFormat(schema=schema):
                return Constraint(of_schema(schema), "text.format")
        return None

    def messages(self) -> list[Message]:
        """Return the conversation. Raises `InvalidRequest` for items that are not messages."""
        given = [Message("system", self.instructions)] if self.instructions else []
        if isinstance(self.input, str):
            return [*given, Message("user", self.input)]
        if not self.input:
            raise InvalidRequest("input is empty; give a text, or at least one message", "input")
        return [*given, *(_message(item, f"input[{i}]") for i, item in enumerate(self.input))]


def _message(item: dict[str, Any], path: str) -> Message:
    kind = item.get("type")
    if kind not in (None, "message"):
        raise InvalidRequest(
            f"{path} is of the type {kind!r:.80}, but only messages are supported; leave it out",
            f"{path}.type",
        )
    return convert(item, InputMessage, path).plain()
