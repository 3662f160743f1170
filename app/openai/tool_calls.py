"""Tool calls in answers: `tool_calls` of messages, and of the chunks of a stream."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

from app.engine_client import Tokenizer
from app.prompt.tool_calls.parser import ToolCallParser
from app.prompt.tool_calls.pieces import CallArguments, CallBegin, Content, Piece
from app.prompt.tool_calls.tool_format import ToolFormat
from gpu.events import Token

Delta = dict[str, Any]


class ToolCallWriter:
    """Writes one choice as OpenAI's deltas.

    names     functions that the model was given
    parallel  whether it may call several; without, calls after the first are left out
    """

    def __init__(
        self, tokenizer: Tokenizer, form: ToolFormat, names: Container[str], parallel: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._form = form
        self._parallel = parallel
        self._parser = ToolCallParser(form, names)

    @property
    def has_calls(self) -> bool:
        return self._parser.n_calls > 0

    def push(self, token: Token) -> Delta:
        """Return what a token adds; {} while its text may be the beginning of a call.

        Special tokens have no text, but some are part of the form of calls.
        """
        text = token.text
        if self._tokenizer.is_special(token.id):
            piece = self._tokenizer.piece(token.id)
            text += piece if piece in self._form.tokens else ""
        return self._delta(self._parser.push(text))

    def finish(self) -> Delta:
        """Return what was held back when the answer ended."""
        return self._delta(self._parser.finish())

    def message(self, tokens: Sequence[Token]) -> dict[str, Any]:
        """Return the whole message of all tokens: what its deltas add up to."""
        text = ""
        calls: list[dict[str, Any]] = []
        for delta in (*map(self.push, tokens), self.finish()):
            text += delta.get("content", "")
            for call in delta.get("tool_calls", []):
                if call["index"] == len(calls):
                    calls.append(
                        {"id": call["id"], "type": call["type"], "function": {**call["function"]}}
                    )
                else:
                    calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
        message = {"role": "assistant", "content": text or (None if calls else ""), "refusal": None}
        return message | ({"tool_calls": calls} if calls else {})

    def _delta(self, pieces: Sequence[Piece]) -> Delta:
        delta: Delta = {}
        for piece in pieces:
            match piece:
                case Content(text):
                    delta["content"] = delta.get("content", "") + text
                case CallBegin(call) | CallArguments(call) if call > 0 and not self._parallel:
                    continue
                case CallBegin(call, name):
                    delta.setdefault("tool_calls", []).append(self._first(call, name))
                case CallArguments(call, text):
                    self._add_arguments(delta.setdefault("tool_calls", []), call, text)
        return delta

    def _first(self, call: int, name: str) -> dict[str, Any]:
        function = {"name": name, "arguments": ""}
        return {"index": call, "id": self._form.new_id(), "type": "function", "function": function}

    def _add_arguments(self, calls: list[dict[str, Any]], call: int, text: str) -> None:
        if calls and calls[-1]["index"] == call:
            calls[-1]["function"]["arguments"] += text
        else:
            calls.append({"index": call, "function": {"arguments": text}})
