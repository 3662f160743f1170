"""Incremental detokenization of a sequence that is still being written: token ids in, whole
characters out."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

MAX_INCOMPLETE = 3
"""Most bytes of an unfinished UTF-8 character."""


class HasTokenBytes(Protocol):
    """Interface of a tokenizer for decoding."""

    @property
    def n_stripped_spaces(self) -> int: ...

    def token_bytes(self, id: int) -> bytes: ...


class DecodeStream:
    """Text of a growing sequence, token by token.

    The joined texts (with `flush`) are what the tokens add to the text of the prompt:
    `decode(prompt + ids)` without the complete characters of `decode(prompt)`. A token that ends
    inside a character gives "" and the one that completes it gives the whole character; bytes that
    can no longer become a character give U+FFFD at once. Special tokens give "".
    """

    def __init__(self, tokenizer: HasTokenBytes, prompt_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._strip = tokenizer.n_stripped_spaces
        tail: list[bytes] = []
        n_bytes = 0
        for id in reversed(prompt_ids):
            if n_bytes > max(self._strip, MAX_INCOMPLETE):
                break  # earlier tokens have no effect
            tail.append(tokenizer.token_bytes(id))
            n_bytes += len(tail[-1])
        for data in reversed(tail):
            self._decode(data)

    def push(self, id: int) -> str:
        """Return the text that token `id` completes."""
        return self._decode(self._tokenizer.token_bytes(id))

    def flush(self) -> str:
        """Return the end of the text: U+FFFD if it ends inside a character, else ""."""
        return self._decoder.decode(b"", final=True)

    def _decode(self, data: bytes) -> str:
        if self._strip and data:
            n_cut = min(self._strip, len(data) - len(data.lstrip(b" ")))
            self._strip = self._strip - n_cut if n_cut == len(data) else 0
            data = data[n_cut:]
        return self._decoder.decode(data)
