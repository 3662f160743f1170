"""Index of the KV blocks by the tokens they hold: a prefix in the cache is not computed again. Host
logic only.

A full block is named by a chained hash: of the name of the text before it and its own ids. So the
texts that begin alike share the names, and the blocks, of what they have in common (Kwon et al.
2023, "Efficient Memory Management for Large Language Model Serving with PagedAttention"). Where a
text parts from others inside a block, its first tokens there are found among the blocks that follow
the same text, full or only begun (as in the tree of Zheng et al. 2024, "SGLang"), to be copied.

Keys and values that something else made than the tokens alone (interventions in their passes) go by
another name: what a token was computed under is part of what it is here. Without any, names are of
ids alone.

The hash is BLAKE2b of 32 bytes. Prompts come from strangers, and a hash in which somebody can find
a collision would continue one text from the keys and values of another; this one leaves none to
find, so that names are compared and the texts before them need not be.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b

from gpu.kv.blocks import BLOCK_TOKENS

START = b""
"""Names the empty text."""
NAME_BYTES = 32
MARKED = b"marked"
"""Keeps names of marked blocks apart from those of plain ones, whatever is hashed."""

_IDS = struct.Struct(f"<{BLOCK_TOKENS}I")

Token = int | tuple[int, bytes]
"""An id, and the mark of what it was computed under, if anything."""

Mark = Callable[[int], bytes]
"""Names what the token at a position is computed under; empty where nothing acts on it."""


class Chain:
    """The names of a text's beginnings, one for every full block. The text may grow at its end.

    What `mark` says of a token may change until it is computed."""

    __slots__ = ("_mark", "_names")

    def __init__(self, mark: Mark = lambda position: b"") -> None:
        self._names = [START]
        self._mark = mark

    def tokens(self, ids: list[int], first: int, end: int) -> tuple[Token, ...]:
        """ids[first:end], as they are told apart."""
        marks = [self._mark(first + i) for i in range(end - first)]
        if not any(marks):
            return tuple(ids[first:end])
        pairs = zip(ids[first:end], marks, strict=True)
        return tuple((id, mark) if mark else id for id, mark in pairs)

    def name(self, ids: list[int], n_blocks: int) -> bytes:
        """Of the first `n_blocks` full blocks of `ids`."""
        names = self._names
        while len(names) <= n_blocks:
            first = (len(names) - 1) * BLOCK_TOKENS
            packed = _IDS.pack(*ids[first : first + BLOCK_TOKENS])
            marks = [self._mark(first + i) for i in range(BLOCK_TOKENS)]
            names.append(_hash(names[-1] + packed + _hash_of(marks), MARKED if any(marks) else b""))
        return names[n_blocks]


@dataclass(frozen=True, slots=True)
class Held:
    """What a block is found by: `ids` are its first tokens and follow the text named `parent`.
    `name`: of the text with them, when the block is full. `first`: the position of ids[0]."""

    parent: bytes
    name: bytes | None
    first: int
    ids: tuple[Token, ...]


@dataclass(frozen=True, slots=True)
class Match:
    """The beginning of a text in the cache: `n_tokens` of them. `blocks` are full and hold the
    first; the rest are the first tokens of the block `source`."""

    blocks: tuple[int, ...] = ()
    source: int | None = None
    n_tokens: int = 0


class PrefixCache:
    """Finds blocks by what they hold. It knows neither owners nor use."""

    def __init__(self) -> None:
        self._held: dict[int, Held] = {}
        self._full: dict[bytes, int] = {}
        self._children: dict[bytes, list[int]] = {}

    def __contains__(self, block: int) -> bool:
        return block in self._held

    def held(self, block: int) -> Held | None:
        return self._held.get(block)

    def find(self, ids: list[int], most: int, chain: Chain) -> Match:
        """The longest beginning of ids[:most] that blocks hold; `chain` is that of `ids`."""
        blocks: list[int] = []
        while (len(blocks) + 1) * BLOCK_TOKENS <= most:
            block = self._full.get(chain.name(ids, len(blocks) + 1))
            if block is None:
                break
            blocks.append(block)
        at = len(blocks) * BLOCK_TOKENS
        rest = chain.tokens(ids, at, min(at + BLOCK_TOKENS, most))
        source, n_rest = None, 0
        for block in self._children.get(chain.name(ids, len(blocks)), ()):
            n = _n_common(self._held[block].ids, rest)
            if n > n_rest:
                source, n_rest = block, n
        return Match(tuple(blocks), source, at + n_rest)

    def enter(self, block: int, ids: list[int], first: int, n: int, chain: Chain) -> list[int]:
        """Let `block` be found by ids[first : first + n], its first tokens, if no other holds the
        same. Returns the blocks that are not found any more, because this one holds more."""
        parent, part = chain.name(ids, first // BLOCK_TOKENS), chain.tokens(ids, first, first + n)
        others = [b for b in self._children.get(parent, ()) if b != block]
        if any(_begins(self._held[other].ids, part) for other in others):
            return [block] if self.forget(block) else []
        outdone = [other for other in others if _begins(part, self._held[other].ids)]
        for old in (block, *outdone):
            self.forget(old)
        name = chain.name(ids, first // BLOCK_TOKENS + 1) if n == BLOCK_TOKENS else None
        self._held[block] = Held(parent, name, first, part)
        self._children.setdefault(parent, []).append(block)
        if name is not None:
            self._full[name] = block
        return outdone

    def forget(self, block: int) -> bool:
        """Let `block` not be found any more, because it will hold something else; was it?"""
        held = self._held.pop(block, None)
        if held is None:
            return False
        siblings = self._children[held.parent]
        siblings.remove(block)
        if not siblings:
            del self._children[held.parent]
        if held.name is not None:
            del self._full[held.name]
        return True


def _hash(data: bytes, person: bytes = b"") -> bytes:
    return blake2b(data, digest_size=NAME_BYTES, person=person).digest()


def _hash_of(marks: list[bytes]) -> bytes:
    """Nothing where there are none, so that the names of plain texts are of their ids alone."""
    if not any(marks):
        return b""
    return _hash(b"".join(len(mark).to_bytes() + mark for mark in marks))


def _begins(text: tuple[Token, ...], beginning: tuple[Token, ...]) -> bool:
    return text[: len(beginning)] == beginning


def _n_common(a: tuple[Token, ...], b: tuple[Token, ...]) -> int:
    for n, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return n
    return min(len(a), len(b))
