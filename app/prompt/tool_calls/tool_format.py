"""How the models of one template family write calls of tools."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from app.prompt.conversation import Tool, Turn
from app.prompt.tool_calls.reader import Steps, ToolCallReader
from app.prompt.tool_calls.required import CallPattern


class ToolFormat:
    """Form of one family. A subclass says what differs.

    name     of the family
    openers  texts with which calls begin
    bare     character with which an answer begins that is a call without an opener; "" if calls
             always have one
    closer   text at the end of a call, which models may leave out; "" if there is none
    marks    further texts of the form that may be special tokens
    """

    name = ""
    openers: tuple[str, ...] = ()
    bare = ""
    closer = ""
    marks: tuple[str, ...] = ()

    @property
    def tokens(self) -> frozenset[str]:
        """All texts of the form that may be special tokens."""
        return frozenset((*self.openers, *self.marks, self.closer)) - {""}

    def writes_like(self, template: str) -> bool:
        """Return whether a chat template is of this family."""
        raise NotImplementedError

    def calls(self, reader: ToolCallReader) -> Steps[None]:
        """Read what follows an opener: a call, or an array of calls, and the closer.

        Raises NotACallError where it is neither.
        """
        yield from reader.skip_space()
        if (yield from reader.peek()) == "[":
            yield from reader.call_list()
        else:
            yield from reader.call_object()
        if self.closer:
            # Small models write a bracket too many.
            yield from reader.take_while(lambda char: char.isspace() or char in "}]")
            if (yield from reader.take(self.closer)):
                reader.commit()

    def pattern(self, template: str) -> CallPattern:
        """Return how models with this template write calls."""
        raise NotImplementedError

    def new_id(self) -> str:
        """Return an id for a call, as the family's templates want them."""
        return f"call_{secrets.token_hex(12)}"

    def conversation(
        self, turns: Sequence[Turn], tools: Sequence[Tool], template: str
    ) -> list[Turn]:
        """Return the turns, with their calls and results, as this template reads them. It gets
        `tools` itself."""
        return [*turns]
