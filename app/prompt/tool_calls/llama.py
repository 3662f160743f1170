"""Llama 3.1 and later: an answer that is `{"name": …, "parameters": …}`, or several after `;`, with
`<|python_tag|>` in front or without."""

from __future__ import annotations

from app.prompt.tool_calls.reader import Steps, ToolCallReader
from app.prompt.tool_calls.required import CallPart, CallPattern
from app.prompt.tool_calls.tool_format import ToolFormat


class Llama(ToolFormat):
    name = "Llama 3"
    openers = ("<|python_tag|>",)
    bare = "{"

    def writes_like(self, template: str) -> bool:
        return "<|start_header_id|>" in template and '"parameters": ' in template

    def calls(self, reader: ToolCallReader) -> Steps[None]:
        yield from super().calls(reader)
        while True:
            yield from reader.skip_space()
            yield from reader.take(";")
            yield from reader.skip_space()
            if (yield from reader.peek()) != "{":
                return
            yield from reader.call_object()

    def pattern(self, template: str) -> CallPattern:
        """Return one call alone: the templates do not read several."""
        call = ('{"name": "', CallPart.NAME, '", "parameters": ', CallPart.ARGUMENTS, "}")
        return CallPattern(call, between=None)
