"""Granite 3: `<|tool_call|>[{"name": …, "arguments": …}, …]`; 3.1 writes `<tool_call>`, and some
answers are the array alone."""

from __future__ import annotations

import json
from collections.abc import Sequence

from app.prompt.conversation import Tool, Turn
from app.prompt.tool_calls.required import CallPattern, array_of_calls
from app.prompt.tool_calls.tool_format import ToolFormat


class Granite(ToolFormat):
    name = "Granite 3"
    openers = ("<|tool_call|>", "<tool_call>")
    bare = "["

    def writes_like(self, template: str) -> bool:
        return self.openers[0] in template

    def pattern(self, template: str) -> CallPattern:
        return array_of_calls(self.openers[0])

    def conversation(
        self, turns: Sequence[Turn], tools: Sequence[Tool], template: str
    ) -> list[Turn]:
        """Write calls into the content, because these templates do not read `tool_calls`.

        Granite 3.0 has roles of its own for calls and results, and puts the opener in front itself.
        """
        if "tool_calls" in template:
            return [*turns]
        return [self._turn(turn, template) for turn in turns]

    def _turn(self, turn: Turn, template: str) -> Turn:
        own_roles = "assistant_tool_call" in template
        if own_roles and turn["role"] == "tool":
            return {**turn, "role": "tool_response"}
        if not turn.get("tool_calls"):
            return turn
        functions = [call["function"] for call in turn["tool_calls"]]
        calls = json.dumps(functions, ensure_ascii=False)
        if own_roles:
            return {"role": "assistant_tool_call", "content": calls}
        return {"role": "assistant", "content": f"{turn['content']}{self.openers[0]}{calls}"}
