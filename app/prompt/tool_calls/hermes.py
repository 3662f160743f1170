"""Hermes, Qwen 2.5 and 3, SmolLM 3, Granite 4: `<tool_call>{"name": …, "arguments": …}</tool_call>`
for each call."""

from __future__ import annotations

from app.prompt.tool_calls.required import CallPart, CallPattern
from app.prompt.tool_calls.tool_format import ToolFormat

OTHER_FORMS = ("<function=", "<arg_key>")
"""Signs of templates with other text between the same tags (Qwen 3 Coder, GLM 4.5)."""


class Hermes(ToolFormat):
    name = "Hermes"
    openers = ("<tool_call>",)
    closer = "</tool_call>"

    def writes_like(self, template: str) -> bool:
        tagged = all(tag in template for tag in (*self.openers, self.closer))
        return tagged and not any(sign in template for sign in OTHER_FORMS)

    def pattern(self, template: str) -> CallPattern:
        begin, end = ('\n{"name": "', CallPart.NAME, '", "arguments": '), ("}\n", self.closer)
        return CallPattern((*self.openers, *begin, CallPart.ARGUMENTS, *end), between=("\n",))
