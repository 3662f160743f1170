"""Tools of a chat: which of them the model gets to see, which it must call, and how it does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from app.engine_client import Tokenizer
from app.prompt import conversation
from app.prompt.prompts import chosen_template
from app.prompt.tool_calls.registry import tool_format
from app.prompt.tool_calls.writer import ToolCallWriter
from app.protocol.tools import ChosenTool, Tool, ToolChoice
from gpu import Grammar, InvalidRequest

MAX_DEPTH = 64
"""Most objects and lists within each other in a schema or in arguments."""


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


def call_grammar(
    tokenizer: Tokenizer, required: Sequence[conversation.Tool], parallel: bool
) -> Grammar:
    """Return the grammar of calls of `required`, of only one unless `parallel`."""
    template = chosen_template(tokenizer, with_tools=True) or ""
    pattern = tool_format(template).pattern(template)
    return pattern.grammar(tokenizer, required, parallel)


def call_writer(
    tokenizer: Tokenizer, tools: Sequence[conversation.Tool], parallel: bool
) -> ToolCallWriter:
    """Return a writer of one answer, for the form in which this model calls tools."""
    form = tool_format(chosen_template(tokenizer, with_tools=True) or "")
    names = {tool["function"]["name"] for tool in tools}
    return ToolCallWriter(tokenizer, form, names, parallel)


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
