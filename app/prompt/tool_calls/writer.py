"""Tool calls in answers: `tool_calls` of messages, and of the chunks of a stream."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

import msgspec

from app.engine_client import Tokenizer
from app.prompt.tool_calls.parser import ToolCallParser
from app.prompt.tool_calls.pieces import CallArguments, CallBegin, Content, Piece
from app.prompt.tool_calls.tool_format import ToolFormat
from gpu.events import CalledTool, Done, Token

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
        return self.push_text(token.id, token.text)

    def push_text(self, id: int, text: str) -> Delta:
        """Return what the token `id` adds, whose text is `text`."""
        if self._tokenizer.is_special(id):
            piece = self._tokenizer.piece(id)
            text += piece if piece in self._form.tokens else ""
        return self._delta(self._parser.push(text))

    def finish(self) -> Delta:
        """Return what was held back when the answer ended."""
        return self._delta(self._parser.finish())

    def message(self, tokens: Sequence[Token]) -> dict[str, Any]:
        """Return the whole message of all tokens: what its deltas add up to."""
        whole = WholeMessage()
        for delta in (*map(self.push, tokens), self.finish()):
            whole.add(delta)
        calls = whole.calls
        content = whole.content or (None if calls else "")
        message = {"role": "assistant", "content": content, "refusal": None}
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


class WholeMessage:
    """A whole message, made of its deltas: the text outside of the calls, and the calls as OpenAI's
    `tool_calls`."""

    def __init__(self) -> None:
        self.content = ""
        self.calls: list[dict[str, Any]] = []

    def add(self, delta: Delta) -> None:
        """Add the next delta."""
        self.content += delta.get("content", "")
        for call in delta.get("tool_calls", []):
            function = call["function"]
            if call["index"] == len(self.calls):
                begun = {"id": call["id"], "type": call["type"], "function": {**function}}
                self.calls.append(begun)
            else:
                self.calls[call["index"]]["function"]["arguments"] += function["arguments"]


class AnswerReader:
    """Reads the calls in a run's text for the page, whatever token it was cut into."""

    def __init__(self, writer: ToolCallWriter) -> None:
        self._writer = writer
        self._whole = WholeMessage()

    def push(self, id: int, text: str) -> None:
        """Read the next token."""
        self._whole.add(self._writer.push_text(id, text))

    def finish(self, done: Done) -> Done:
        """Return the end of the run with the calls."""
        self._whole.add(self._writer.finish())
        calls = [
            CalledTool(call["id"], call["function"]["name"], call["function"]["arguments"])
            for call in self._whole.calls
        ]
        return msgspec.structs.replace(done, content=self._whole.content, tool_calls=tuple(calls))
