"""Grammar of an answer that must call functions, in the form of a template family."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from app.engine_client import Tokenizer
from app.prompt.conversation import Tool
from gpu import Grammar

SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""White space in arguments: that of the JSON in the prompt, and no more."""


class CallPart(Enum):
    """Parts of a call that differ from call to call."""

    NAME = "name"
    ARGUMENTS = "arguments"


@dataclass(frozen=True)
class CallPattern:
    """How a family writes calls: texts, special tokens by their names, and `CallPart`s.

    begin, end  around all calls
    call        one of them
    between     two of them; None if an answer has only one
    """

    call: tuple[str | CallPart, ...]
    begin: tuple[str, ...] = ()
    between: tuple[str, ...] | None = ()
    end: tuple[str, ...] = ()

    def grammar(self, tokenizer: Tokenizer, tools: Sequence[Tool], parallel: bool) -> Grammar:
        """Return the grammar of at least one call of `tools`, of only one unless `parallel`."""
        begin, end = _lark(tokenizer, self.begin), _lark(tokenizer, self.end)
        more = ""
        if parallel and self.between is not None:
            more = f"({_lark(tokenizer, self.between)} call)*"
        names = [f"call{i}" for i in range(len(tools))]
        lines = [f"start: {begin} call {more} {end}", f"call: {' | '.join(names)}"]
        for i, tool in enumerate(tools):
            function = tool["function"]
            filled = {
                CallPart.NAME: json.dumps(function["name"]),
                CallPart.ARGUMENTS: f"arguments{i}",
            }
            parts = [
                filled[part] if isinstance(part, CallPart) else _lark(tokenizer, (part,))
                for part in self.call
            ]
            schema = {"x-guidance": SPACING, "type": "object", **function["parameters"]}
            lines.append(f"call{i}: {' '.join(parts)}")
            lines.append(f"arguments{i}: %json {json.dumps(schema)}")
        return Grammar("lark", "\n".join(lines))


def array_of_calls(opener: str) -> CallPattern:
    """Return the pattern of an array of calls after an opener."""
    call = ('{"name": "', CallPart.NAME, '", "arguments": ', CallPart.ARGUMENTS, "}")
    return CallPattern(call, begin=(opener, "["), between=(", ",), end=("]",))


def _lark(tokenizer: Tokenizer, parts: Sequence[str]) -> str:
    """Return texts in Lark: special tokens by their ids, others as strings."""
    written = []
    for part in parts:
        ids = tokenizer.encode(part, bos=False)
        special = len(ids) == 1 and tokenizer.is_special(ids[0])
        written.append(f"<[{ids[0]}]>" if special else json.dumps(part))
    return " ".join(written)
