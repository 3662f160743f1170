"""Conversations as chat templates read them: turns and tools, and the texts in both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

Turn = dict[str, Any]
"""A message: `role` and `content`. The assistant's may have `tool_calls`, each with `id`, `type`
and `function` (`name`, and `arguments` as an object). A tool's has `tool_call_id` and `name`."""

Tool = dict[str, Any]
"""`type` and `function`: `name`, `description`, and `parameters`, a JSON schema."""


def has_calls(turns: Sequence[Turn]) -> bool:
    """Return whether there are calls of tools, or their results."""
    return any(turn["role"] == "tool" or "tool_calls" in turn for turn in turns)


def texts_of(turns: Sequence[Turn], tools: Sequence[Tool] = ()) -> list[str]:
    """Return every text in the turns and tools that a client wrote, each once."""
    values = [value for turn in turns for name, value in turn.items() if name != "role"]
    return list(dict.fromkeys(_strings([*values, *tools])))


def map_turn(turn: Turn, change: Callable[[str], str]) -> Turn:
    """Return a turn with `change` applied to all its texts."""
    return {
        name: value if name == "role" else map_texts(value, change) for name, value in turn.items()
    }


def map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return a JSON value with `change` applied to all its strings, names of members too."""
    match value:
        case str():
            return change(value)
        case list():
            return [map_texts(item, change) for item in value]
        case dict():
            return {change(name): map_texts(item, change) for name, item in value.items()}
        case _:
            return value


def _strings(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case list():
            for item in value:
                yield from _strings(item)
        case dict():
            for name, item in value.items():
                yield name
                yield from _strings(item)
