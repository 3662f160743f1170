"""Which KV blocks hold which tokens, so that no prefix is computed twice. Host logic only.

A full block is named by a chained hash: of the name of the text before it and its own ids. So the
texts that begin alike share the names, and the blocks, of what they have in common (Kwon et al.
2023, "Efficient Memory Management for Large Language Model Serving with PagedAttention"). Where a
text parts from others inside a block, its first tokens there are found among the blocks that follow
the same text, full or only begun (as in the tree of Zheng et al. 2024, "SGLang"), to be copied.

The hash is BLAKE2b of 32 bytes. Prompts come from strangers, and a hash in which somebody can find
a collision would continue one text from the keys and values of another; this one leaves none to
find, so that names are compared and the texts before them need not be.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from hashlib import blake2b

from gpu.kv.blocks import BLOCK_TOKENS

START = b""
"""Names the empty text."""
NAME_BYTES = 32
_IDS = struct.Struct(f"<{BLOCK_TOKENS}I")


class Chain:
    """The names of a text's beginnings, one for every full block. The text may grow at its end."""

    __slots__ = ("_names",)

    def __init__(self) -> None:
        self._names = [START]

    def name(self, ids: list[int], n_blocks: int) -> bytes:
        """Of the first `n_blocks` full blocks of `ids`."""
        names = self._names
        while len(names) <= n_blocks:
            first = (len(names) - 1) * BLOCK_TOKENS
            packed = _IDS.pack(*ids[first : first + BLOCK_TOKENS])
            names.append(blake2b(names[-1] + packed, digest_size=NAME_BYTES).digest())
        return names[n_blocks]


@dataclass(frozen=True, slots=True)
class Held:
    """What a block is found by: `ids` are its first tokens and follow the text named `parent`.
    `name`: of the text with them, when the block is full. `first`: the position of ids[0]."""

    parent: bytes
    name: bytes | None
    first: int
    ids: tuple[int, ...]


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
        rest = tuple(ids[at : min(at + BLOCK_TOKENS, most)])
        source, n_rest = None, 0
        for block in self._children.get(chain.name(ids, len(blocks)), ()):
            n = _n_common(self._held[block].ids, rest)
            if n > n_rest:
                source, n_rest = block, n
        return Match(tuple(blocks), source, at + n_rest)

    def enter(self, block: int, ids: list[int], first: int, n: int, chain: Chain) -> list[int]:
        """Let `block` be found by ids[first : first + n], its first tokens, if no other holds the
        same. Returns the blocks that are not found any more, because this one holds more."""
        parent, part = chain.name(ids, first // BLOCK_TOKENS), tuple(ids[first : first + n])
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


def _begins(text: tuple[int, ...], beginning: tuple[int, ...]) -> bool:
    return text[: len(beginning)] == beginning


def _n_common(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    for n, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return n
    return min(len(a), len(b))
