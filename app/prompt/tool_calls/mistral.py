"""Mistral: `[TOOL_CALLS][{"name": …, "arguments": …}, …]`, or in newer models
`[TOOL_CALLS]name[ARGS]{…}` for each call."""

from __future__ import annotations

import hashlib
import re
import secrets
import string
from collections.abc import Sequence

from app.prompt.conversation import Tool, Turn
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

    def conversation(
        self, turns: Sequence[Turn], tools: Sequence[Tool], template: str
    ) -> list[Turn]:
        """Give calls and their results ids that the templates take, in place of other servers'."""
        return [_with_own_ids(turn) for turn in turns]


def _with_own_ids(turn: Turn) -> Turn:
    changed = dict(turn)
    if "tool_calls" in turn:
        changed["tool_calls"] = [{**call, "id": _own_id(call["id"])} for call in turn["tool_calls"]]
    if "tool_call_id" in turn:
        changed["tool_call_id"] = _own_id(turn["tool_call_id"])
    return changed


def _own_id(id: str) -> str:
    """Return an id of nine letters and digits, always the same one for the same id."""
    if re.fullmatch(f"[A-Za-z0-9]{{{ID_LENGTH}}}", id):
        return id
    return hashlib.sha256(id.encode(errors="surrogatepass")).hexdigest()[:ID_LENGTH]


def _in_name(char: str) -> bool:
    return NAME.fullmatch(char) is not None
