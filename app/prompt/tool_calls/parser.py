"""Tool-call parser of one answer: its text as it is written in, content and calls out.

Text is held back only while it may be the beginning of a call, and white space while a call may
follow. A call whose name was read and whose arguments have begun is a call whatever follows. What
turns out to be none is content. `app.prompt.tool_calls.writer` gives calls the shape of OpenAI's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Container

from app.prompt.tool_calls.pieces import Content, Piece, add_piece
from app.prompt.tool_calls.reader import NotACallError, Steps, ToolCallReader
from app.prompt.tool_calls.tool_format import ToolFormat


class ToolCallParser:
    """Tool-call parser of one answer. Push its text as it is written, then call `finish` once.

    names  functions that the model was given. After an opener, another name counts as a call, too:
           the program that runs calls can tell the model that there is none. JSON without an opener
           counts for these names only
    """

    def __init__(self, form: ToolFormat, names: Container[str]) -> None:
        self._form = form
        self._names = names
        self._reader = ToolCallReader(form.closer)
        self._space = ""  # written since the last content or call
        self._steps = self._read()

    @property
    def n_calls(self) -> int:
        """Calls that have begun."""
        return self._reader.n_calls

    def push(self, text: str) -> list[Piece]:
        """Add text; return the pieces that are decided."""
        self._reader.add(text)
        return self._advance()

    def finish(self) -> list[Piece]:
        """Return the last pieces, of text that was held back."""
        self._reader.end()
        return self._advance()

    def _advance(self) -> list[Piece]:
        next(self._steps, None)
        pieces, self._reader.pieces = self._reader.pieces, []
        return pieces

    def _read(self) -> Steps[None]:
        reader = self._reader
        yield from self._bare_call()
        while char := (yield from reader.peek()):
            if (yield from self._calls()):
                continue
            reader.at += 1
            reader.commit()
            self._write(char)
        if self._space and not reader.n_calls:
            add_piece(reader.pieces, Content(self._space))

    def _bare_call(self) -> Steps[None]:
        """Read calls with which the answer begins without an opener."""
        reader = self._reader
        yield from reader.skip_space()
        if self._form.bare and (yield from reader.peek()) == self._form.bare:
            reader.names = self._names
            yield from self._try_calls()
            reader.names = None
        reader.at = reader.committed

    def _calls(self) -> Steps[bool]:
        """Read calls if an opener comes next; return whether it did and there were calls."""
        for opener in self._form.openers:
            if (yield from self._reader.take(opener)):
                return (yield from self._try_calls())
        return False

    def _try_calls(self) -> Steps[bool]:
        """Read calls; return whether there were any. Reading goes on after the last one."""
        reader = self._reader
        n_before = reader.n_calls
        with contextlib.suppress(NotACallError):
            yield from self._form.calls(reader)
        reader.at = reader.committed
        if reader.n_calls > n_before:
            self._space = ""
        return reader.n_calls > n_before

    def _write(self, char: str) -> None:
        """Emit a character of the content, or hold it back if it is white space."""
        self._space += char
        if not char.isspace():
            add_piece(self._reader.pieces, Content(self._space))
            self._space = ""
