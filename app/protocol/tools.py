"""Tools of a chat, in OpenAI's form: functions that the model may call, its calls of them, and
whether it may or must call one."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

MAX_TOOLS = 128
"""Most tools of a request, as in OpenAI's API."""

FunctionName = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[a-zA-Z0-9_-]{1,64}$(?!\n)",
        description="a name of 1 to 64 letters, digits, underscores and hyphens",
    ),
]
"""In Python, unlike in JSON schemas, `$` also stands before a newline at the end."""


class Function(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Function that the model may call.

    parameters  JSON schema of an object; without it, the function has no parameters
    strict      accepted; but only calls that `tool_choice` requires are held to the schema
    """

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["function"]
    function: Function

    def described(self) -> dict[str, Any]:
        """Return the tool as chat templates read it."""
        function: dict[str, Any] = {"name": self.function.name}
        if self.function.description is not None:
            function["description"] = self.function.description
        no_parameters = {"type": "object", "properties": {}}
        function["parameters"] = self.function.parameters or no_parameters
        return {"type": "function", "function": function}


class ChosenFunction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str


class ChosenTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["function"]
    function: ChosenFunction


ToolNeed = Literal["none", "auto", "required"]
"""Whether the model sees the tools and must call one; the first word is for neither."""

ToolChoice = ToolNeed | ChosenTool


class CalledFunction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Name and arguments of a call; the arguments are JSON as the model wrote it."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Call that an assistant's message has."""

    id: str
    function: CalledFunction
    type: Literal["function"] = "function"
