"""Reading of tool calls in a text that is still being written.

A grammar is made of `Steps`: generators that suspend where the next character is not written yet,
so that the functions of a recursive-descent parser also read a stream. Every decision depends on
characters alone, so the result is the same however the text is cut into tokens.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Callable, Container, Generator
from typing import TypeVar

from app.prompt.tool_calls.pieces import CallArguments, CallBegin, Piece, add_piece

Result = TypeVar("Result")
Steps = Generator[None, None, Result]

NAME = re.compile(r"[\w.:/-]{1,128}", re.ASCII)
"""Names of functions; models may call some that were not given to them."""

HIGH_SURROGATE = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}")
UNICODE_ESCAPE_CHARS = 6

ARGUMENTS = ("arguments", "parameters")
IGNORED = ("id", "type")
"""Members of a call other than its name and its arguments."""


class NotACallError(Exception):
    """The text that looked like the beginning of a call is none."""


class ToolCallReader:
    """The text of one answer, read up to `at`, and the pieces found in it.

    names      the only functions that can be called now; None if a call may name any
    closer     text that ends a call's arguments, even where their brackets are not closed; "" if
               there is none
    committed  end of what has become a call: reading never goes back before it
    """

    def __init__(self, closer: str = "") -> None:
        self.at = 0
        self.committed = 0
        self.pieces: list[Piece] = []
        self.names: Container[str] | None = None
        self.n_calls = 0
        self._closer = closer
        self._text = ""
        self._ended = False

    def add(self, text: str) -> None:
        """Append text that was written."""
        self._text = self._text[self.committed :] + text
        self.at -= self.committed
        self.committed = 0

    def end(self) -> None:
        """Say that nothing follows."""
        self._ended = True

    # ---- characters --------------------------------------------------------------------------

    def peek(self) -> Steps[str]:
        """Return the next character; "" at the end of the answer."""
        while self.at == len(self._text):
            if self._ended:
                return ""
            yield
        return self._text[self.at]

    def next_is(self, text: str) -> Steps[bool]:
        """Return whether `text` comes next. Waits only while it may."""
        while True:
            found = self._text[self.at : self.at + len(text)]
            if found == text:
                return True
            if self._ended or not text.startswith(found):
                return False
            yield

    def take(self, text: str) -> Steps[bool]:
        """Read `text` if it comes next; return whether it did."""
        found = yield from self.next_is(text)
        self.at += len(text) if found else 0
        return found

    def expect(self, text: str) -> Steps[None]:
        if not (yield from self.take(text)):
            raise NotACallError

    def take_while(self, accepts: Callable[[str], bool]) -> Steps[str]:
        """Read and return the characters up to the first that `accepts` does not take."""
        taken = []
        while (char := (yield from self.peek())) and accepts(char):
            taken.append(char)
            self.at += 1
        return "".join(taken)

    def skip_space(self) -> Steps[None]:
        yield from self.take_while(str.isspace)

    # ---- JSON --------------------------------------------------------------------------------

    def string(self) -> Steps[str]:
        """Read a JSON string and return its value."""
        raw: list[str] = []
        if (yield from self.peek()) == '"':
            yield from self._quoted(raw.append)
        try:
            return str(json.loads("".join(raw), strict=False))
        except ValueError:
            raise NotACallError from None

    def _quoted(self, write: Callable[[str], None]) -> Steps[None]:
        """Read a string in quotation marks; `write` gets each of its characters."""
        escaped = True  # the first mark does not end it
        while char := (yield from self.peek()):
            self.at += 1
            write(char)
            if char == '"' and not escaped:
                return
            escaped = char == "\\" and not escaped

    def brackets(self, write: Callable[[str], None]) -> Steps[None]:
        """Read an object or array; `write` gets each of its characters.

        What is inside is not checked: the calling program has to do so in any case. It ends where
        its brackets are closed, at `closer`, or with the answer.
        """
        depth = 0
        while char := (yield from self.peek()):
            if self._closer and (yield from self.next_is(self._closer)):
                return
            if char == '"':
                yield from self._quoted(write)
                continue
            self.at += 1
            write(char)
            depth += (char in "{[") - (char in "}]")
            if depth == 0:
                return

    def _object_in_string(self, write: Callable[[str], None]) -> Steps[None]:
        """Read a JSON string; `write` gets the text inside of it, or that of an empty object if it
        is blank."""
        self.at += 1
        begun = False
        while char := (yield from self._string_char()):
            begun = begun or not char.isspace()
            if begun:
                write(char)
        if not begun:
            write("{}")

    def _string_char(self) -> Steps[str]:
        """Read one character of a JSON string, "" at its end. An escape that is none stays as it is
        written."""
        char = yield from self.peek()
        self.at += len(char)
        if char != "\\":
            return char if char != '"' else ""
        raw = yield from self._escape()
        if HIGH_SURROGATE.fullmatch(raw) and (yield from self.take("\\")):
            raw += yield from self._escape()
        try:
            text = str(json.loads(f'"{raw}"'))
        except ValueError:
            return raw
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    def _escape(self) -> Steps[str]:
        """Read what follows a backslash, and return both."""
        raw = "\\" + (yield from self.peek())
        self.at += len(raw) - 1
        while raw[1:2] == "u" and len(raw) < UNICODE_ESCAPE_CHARS:
            char = yield from self.peek()
            if not char or char not in string.hexdigits:
                break
            raw += char
            self.at += 1
        return raw

    def _skip_value(self) -> Steps[None]:
        char = yield from self.peek()
        if char == '"':
            yield from self.string()
        elif char in ("{", "["):
            yield from self.brackets(lambda char: None)
        else:
            yield from self.take_while(lambda char: char not in ",}]" and not char.isspace())

    # ---- calls -------------------------------------------------------------------------------

    def begin_call(self, name: str) -> None:
        """Emit the beginning of a call: from now on it is one, whatever follows.

        Raises NotACallError if there is no such function.
        """
        if not NAME.fullmatch(name) or (self.names is not None and name not in self.names):
            raise NotACallError
        add_piece(self.pieces, CallBegin(self.n_calls, name))
        self.n_calls += 1

    def write_arguments(self, text: str) -> None:
        """Emit text of the arguments of the call that began last."""
        add_piece(self.pieces, CallArguments(self.n_calls - 1, text))

    def commit(self) -> None:
        """Never go back before this place."""
        self.committed = self.at

    def call_list(self) -> Steps[None]:
        """Read an array of calls."""
        yield from self.expect("[")
        while True:
            yield from self.skip_space()
            yield from self.call_object()
            yield from self.skip_space()
            if (yield from self.take("]")):
                return self.commit()
            yield from self.expect(",")

    def call_object(self) -> Steps[None]:
        """Read `{"name": …, "arguments": {…}}`; `parameters` are arguments too, and the order is
        free. A call without arguments has `{}`. Anything after the arguments may be missing."""
        yield from self.expect("{")
        name, arguments, begun = None, None, False
        while True:
            yield from self.skip_space()
            key = yield from self.string()
            yield from self.skip_space()
            yield from self.expect(":")
            yield from self.skip_space()
            if key == "name" and name is None:
                name = yield from self.string()
            elif key in ARGUMENTS and arguments is None:
                arguments = yield from self.arguments(name)
                begun = name is not None
            elif begun or key in IGNORED:
                yield from self._skip_value()
            else:
                raise NotACallError
            if begun:
                self.commit()
            yield from self.skip_space()
            if (yield from self.take("}")):
                break
            if begun and not (yield from self.next_is(",")):
                self.at = self.committed
                return
            yield from self.expect(",")
        if name is None:
            raise NotACallError
        if not begun:
            self.begin_call(name)
            self.write_arguments(arguments or "{}")
        self.commit()

    def arguments(self, name: str | None) -> Steps[str]:
        """Read arguments: an object, a JSON string of one (Granite 4 and others write it), or null
        for none. They are emitted at once if the name is known, otherwise returned."""
        none = yield from self.take("null")
        if not none and (yield from self.peek()) not in ("{", '"'):
            raise NotACallError
        written: list[str] = []
        write = written.append
        if name is not None:
            self.begin_call(name)
            self.commit()
            write = self.write_arguments
        if none:
            write("{}")
        elif (yield from self.peek()) == "{":
            yield from self.brackets(write)
        else:
            yield from self._object_in_string(write)
        return "".join(written)
