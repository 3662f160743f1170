"""End of a JSON text that is cut by a limit: strings and numbers without one of their own could
otherwise go on until no token is left, and what is cut inside of them is no JSON.

While such a string or number is written, the shortest rest of the whole text is known by following
the grammar byte by byte. Once no more tokens are left than that rest has bytes, and a few, only
tokens of the rest may come. A token has at least one byte, so the rest fits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpu.text.grammar_vocabulary import GrammarVocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher

MAX_REST = 1024
"""Bytes of the longest rest that is looked for."""
SPARE = 6
"""Tokens kept in addition to the bytes of the rest: a token may begin an escape or a character of
several bytes, or add a dot or an exponent to a number."""
MIN_FREE_BYTES = 64
"""Bytes that may come next inside of a string whose text is free."""

QUOTE, BACKSLASH = b'"\\'
DIGITS = b"0123456789"
SPACE = b" \t\n\r"
IN_STRING = bytes((QUOTE, *range(0x61, 0x7B), *range(0x20, 0x22), *range(0x23, 0x5C)))
OUTSIDE = b'}]",:' + DIGITS
ORDERS = {
    inside: bytes((*first, *(byte for byte in range(256) if byte not in first + last), *last))
    for inside, first, last in ((True, IN_STRING, b"\\"), (False, OUTSIDE, SPACE))
}
"""Bytes from the one that ends a text soonest, inside of strings and outside."""


class JsonState:
    """Whether a JSON text stands inside of a string."""

    def __init__(self) -> None:
        self.in_string = False
        self._escaped = False

    def copy(self) -> JsonState:
        other = JsonState()
        other.in_string, other._escaped = self.in_string, self._escaped
        return other

    def read(self, byte: int) -> None:
        if self._escaped:
            self._escaped = False
        elif self.in_string and byte == BACKSLASH:
            self._escaped = True
        elif byte == QUOTE:
            self.in_string = not self.in_string


class JsonClosing:
    """Rest of a JSON text that must come when few tokens are left.

    matcher       grammar of the text for the vocabulary of the bytes; reads along
    ids_of_bytes  tokens of the model by their bytes
    """

    def __init__(self, matcher: LLMatcher, ids_of_bytes: dict[bytes, list[int]]) -> None:
        self._matcher = matcher
        self._ids = ids_of_bytes
        self._state = JsonState()
        self._last = 0
        self._rest: bytes | None = None  # of the string that is being written
        self._begun = False

    def read(self, data: bytes) -> None:
        """Read the bytes of the next token."""
        if not self._matcher.consume_tokens(list(data)):
            return
        for byte in data:
            self._state.read(byte)
            self._last = byte
        if not self._state.in_string:
            self._rest = None

    def ids(self, n_left: int, eos_ids: tuple[int, ...]) -> list[int] | None:
        """Return the ids of which one must come next, if `n_left` tokens may be written; None if
        there is no need. Once a string or number was ended, white space and others are, too."""
        if n_left > MAX_REST + SPARE:
            return None
        free = self._is_free()
        if not (free or self._begun):
            return None
        rest = self._rest or rest_of(self._matcher, self._state)
        self._rest = rest if free and self._state.in_string else None
        if rest is None or n_left > len(rest) + SPARE:
            return None
        self._begun = True
        prefixes = (rest[:n] for n in range(1, len(rest) + 1))
        found = [id for prefix in prefixes for id in self._ids.get(prefix, ())]
        return found if rest else list(eos_ids)

    def _is_free(self) -> bool:
        """Return whether the text is in a string or a number that may go on, and may end here."""
        if self._matcher.is_error() or self._matcher.is_stopped():
            return False
        if not self._state.in_string and self._last not in DIGITS:
            return False
        allowed = allowed_bytes(self._matcher)
        if not self._state.in_string:
            return any(allowed >> digit & 1 for digit in DIGITS)
        return bool(allowed >> QUOTE & 1) and allowed.bit_count() >= MIN_FREE_BYTES


def rest_of(matcher: LLMatcher, state: JsonState) -> bytes | None:
    """Return a short text that completes what the matcher of bytes has read; None if none is found
    within `MAX_REST` bytes."""
    matcher, state = matcher.deep_copy(), state.copy()
    rest = b""
    while not matcher.is_accepting():
        allowed = allowed_bytes(matcher)
        byte = next((byte for byte in ORDERS[state.in_string] if allowed >> byte & 1), None)
        if byte is None or len(rest) == MAX_REST:
            return None
        matcher.consume_token(byte)
        state.read(byte)
        rest += bytes([byte])
    return rest


def allowed_bytes(matcher: LLMatcher) -> int:
    """Return which bytes may come next, one bit each."""
    if matcher.is_stopped():
        return 0
    return int.from_bytes(matcher.compute_bitmask()[:32], "little")


def ids_of_bytes(vocabulary: GrammarVocabulary) -> dict[bytes, list[int]]:
    """Return the tokens of a vocabulary by their bytes, without special ones."""
    found: dict[bytes, list[int]] = {}
    for id, data in _texts(vocabulary):
        found.setdefault(data, []).append(id)
    return found


def _texts(vocabulary: GrammarVocabulary) -> Iterator[tuple[int, bytes]]:
    specials = set(vocabulary.specials)
    return ((i, data) for i, data in enumerate(vocabulary.tokens) if data and i not in specials)
