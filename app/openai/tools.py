"""Tools of chat requests: the functions that the model may call, and whether it may."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

import msgspec

from app.prompt import conversation
from gpu import InvalidRequest

MAX_TOOLS = 128
"""As many as OpenAI takes."""

MAX_DEPTH = 64
"""Most objects and lists within each other in a schema or in arguments."""

FunctionName = Annotated[str, msgspec.Meta(pattern=r"^[a-zA-Z0-9_-]{1,64}$(?!\n)")]
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

    def described(self) -> conversation.Tool:
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


ToolChoice = Literal["none", "auto", "required"] | ChosenTool


def offered_tools(tools: Sequence[Tool], choice: ToolChoice | None) -> list[conversation.Tool]:
    """Return the tools that the model gets to see. Raises `InvalidRequest`."""
    names: set[str] = set()
    for i, tool in enumerate(tools):
        path = f"tools[{i}].function"
        if tool.function.name in names:
            raise InvalidRequest(
                f"two functions are called {tool.function.name!r}; give each its own name",
                f"{path}.name",
            )
        names.add(tool.function.name)
        _check_parameters(tool.function.parameters or {}, f"{path}.parameters")
    return [] if choice == "none" else [tool.described() for tool in tools]


def required_tools(
    tools: Sequence[conversation.Tool], choice: ToolChoice | None
) -> list[conversation.Tool]:
    """Return the tools of which the model must call one; none of them if it need not call any.

    Raises `InvalidRequest` for a choice of a tool that is not among `tools`.
    """
    chosen = choice.function.name if isinstance(choice, ChosenTool) else None
    if chosen is None and choice != "required":
        return []
    required = [tool for tool in tools if chosen in (None, tool["function"]["name"])]
    if not required:
        what = "any function" if chosen is None else f"the function {chosen!r:.80}"
        raise InvalidRequest(f"tool_choice asks for {what}, but it is not in tools", "tool_choice")
    return required


def _check_parameters(schema: dict[str, Any], path: str) -> None:
    if schema.get("type", "object") != "object":
        raise InvalidRequest(
            f"parameters must be the schema of an object, but its type is {schema['type']!r:.80}",
            f"{path}.type",
        )
    if is_deeper(schema, MAX_DEPTH):
        raise InvalidRequest(
            f"expected at most {MAX_DEPTH} objects and lists within each other", path
        )


def is_deeper(value: Any, depth: int) -> bool:
    """Return whether a JSON value has more than `depth` objects and lists within each other."""
    containers = [value]
    for _ in range(depth):
        items = [item for container in containers for item in _items(container)]
        containers = [item for item in items if isinstance(item, dict | list)]
    return bool(containers)


def _items(container: Any) -> Iterable[Any]:
    return container.values() if isinstance(container, dict) else container
