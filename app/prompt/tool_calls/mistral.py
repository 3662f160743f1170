"""Mistral: `[TOOL_CALLS][{"name": …, "arguments": …}, …]`, or in newer models
`[TOOL_CALLS]name[ARGS]{…}` for each call."""

from __future__ import annotations

import secrets
import string

from app.prompt.tool_calls.reader import NAME, Steps, ToolCallReader
from app.prompt.tool_calls.required import CallPart, CallPattern, array_of_calls
from app.prompt.tool_calls.tool_format import ToolFormat

ID_CHARS = string.ascii_letters + string.digits
ID_LENGTH = 9


class Mistral(ToolFormat):
    name = "Mistral"
    openers = ("[TOOL_CALLS]",)
    marks = ("[CALL_ID]", "[ARGS]")

    def writes_like(self, template: str) -> bool:
        return self.openers[0] in template

    def calls(self, reader: ToolCallReader) -> Steps[None]:
        yield from reader.skip_space()
        if (yield from reader.peek()) in ("[", "{"):
            yield from super().calls(reader)
            return
        name = yield from reader.take_while(_in_name)
        if (yield from reader.take("[CALL_ID]")):
            yield from reader.take_while(_in_name)
        yield from reader.take("[ARGS]")
        yield from reader.skip_space()
        yield from reader.arguments(name)
        reader.commit()

    def pattern(self, template: str) -> CallPattern:
        if "[ARGS]" in template:
            return CallPattern((self.openers[0], CallPart.NAME, "[ARGS]", CallPart.ARGUMENTS))
        return array_of_calls(self.openers[0])

    def new_id(self) -> str:
        """Return nine letters and digits: the templates refuse other ids."""
        return "".join(secrets.choice(ID_CHARS) for _ in range(ID_LENGTH))


def _in_name(char: str) -> bool:
    return NAME.fullmatch(char) is not None
