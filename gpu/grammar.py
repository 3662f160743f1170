"""Grammar that the text of a run must follow (structured output, guided decoding)."""

from __future__ import annotations

from typing import Literal

import msgspec

from gpu.errors import InvalidRequest

MAX_GRAMMAR_CHARS = 64 * 1024
CANNOT_FOLLOW = "the grammar cannot be followed"
"""Begins the messages of runs that ended because of their grammar: no token could come next by it,
or to find those that can took too long."""


class Grammar(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Constraint of a run: each token is drawn from those that the grammar allows next. Compiled by
    `gpu.text.grammar_matcher`.

    kind    language of `text`: JSON schema, regular expression, Lark as llguidance extends it
            (`%json {...}` embeds a JSON schema), or the GBNF of llama.cpp
    n_read  tokens at the end of the prompt that count as part of the constrained text: those that
            an earlier run under this grammar wrote
    """

    kind: Literal["json_schema", "regex", "lark", "gbnf"]
    text: str
    n_read: int = 0

    def after(self, n: int) -> Grammar:
        """Return the grammar for a prompt that ends with `n` more tokens of constrained text."""
        return msgspec.structs.replace(self, n_read=self.n_read + n)

    def validate(self, n_prompt: int) -> None:
        """Raise InvalidRequest for a text that is too long or an `n_read` that cannot be."""
        if len(self.text) > MAX_GRAMMAR_CHARS:
            raise InvalidRequest(
                f"a grammar may have {MAX_GRAMMAR_CHARS:,} characters, but this one has "
                f"{len(self.text):,}",
                "grammar",
            )
        if not 0 <= self.n_read <= n_prompt:
            raise InvalidRequest(
                f"n_read must be from 0 to the {n_prompt} tokens of the prompt, but is "
                f"{self.n_read}",
                "grammar",
            )
