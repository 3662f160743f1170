"""Prefix cache: index of KV blocks by the tokens they hold, so that a cached prefix is not computed
again. `gpu.kv.prefix_match.match_prefix` searches it, `gpu.kv.block_pool` evicts from it. Host
logic only.

A full block is identified by a chained hash: of the hash of the text before it and its own ids.
Texts with a common beginning thus share its hashes and blocks (Kwon et al. 2023, "Efficient Memory
Management for Large Language Model Serving with PagedAttention"). If a text diverges inside a
block, the common tokens are found among the blocks that follow the same text, full or partial (as
in the tree of Zheng et al. 2024, "SGLang"), and are copied.

Keys and values that depend on more than the tokens (interventions in their passes) get other
hashes: an extra key per token describes what it was computed under. Without extra keys, hashes are
of ids alone.

A salt takes the place of the empty text's hash, so that texts with different salts share nothing:
what is found in the cache tells a client what others wrote.

The hash is BLAKE2b of 32 bytes. Prompts are untrusted, and with a colliding hash one text would
continue from the keys and values of another. Collisions of BLAKE2b cannot be found, so hashes are
compared and the texts before them are not.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Callable, ItemsView, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from gpu.kv.blocks import BLOCK_TOKENS

EMPTY_HASH = b""
"""Hash of the empty text without a salt."""
HASH_BYTES = 32
WITH_EXTRA_KEYS = b"marked"
"""BLAKE2b personalisation that separates hashes with extra keys from those without."""
SALTED = b"salted"
"""BLAKE2b personalisation of salts."""

_IDS = struct.Struct(f"<{BLOCK_TOKENS}I")

Token = int | tuple[int, bytes]
"""An id, with its extra key if it has one."""

ExtraKey = Callable[[int], bytes]
"""Returns the extra key of the token at a position; empty for none."""


class BlockHashes:
    """Chained hashes of a text's full blocks, computed on demand. The text may grow at its end.
    Texts with another `salt` have other hashes.

    The extra key of a token may change until the token is computed. From `approximate_from` on,
    keys and values are not what the text alone gives (`gpu.kv.cache_reuse`): these tokens have a
    key that no other text has, so that no prompt takes them for exact ones.
    """

    __slots__ = ("_approximate", "_extra_key", "_hashes", "approximate_from", "salt")

    def __init__(self, extra_key: ExtraKey = lambda position: b"", salt: str = "") -> None:
        self.salt = salt
        self._hashes = [_hash(salt.encode(), SALTED) if salt else EMPTY_HASH]
        self._extra_key = extra_key
        self._approximate = b""
        self.approximate_from: int | None = None
        """Position of the first approximate token; None: all are exact."""

    def begin_approximate(self, position: int) -> None:
        """Mark the tokens from `position` on as approximate."""
        self.approximate_from = position
        self._approximate = secrets.token_bytes(HASH_BYTES)
        del self._hashes[position // BLOCK_TOKENS + 1 :]

    def forget_approximate(self) -> None:
        """Mark all tokens as exact: they are computed again."""
        if self.approximate_from is not None:
            del self._hashes[self.approximate_from // BLOCK_TOKENS + 1 :]
        self.approximate_from, self._approximate = None, b""

    def tokens(self, ids: list[int], first: int, end: int) -> tuple[Token, ...]:
        """Return ids[first:end] with their extra keys."""
        extra_keys = [self._key(first + i) for i in range(end - first)]
        if not any(extra_keys):
            return tuple(ids[first:end])
        pairs = zip(ids[first:end], extra_keys, strict=True)
        return tuple((id, key) if key else id for id, key in pairs)

    def plain_ids(self, ids: list[int], first: int, end: int) -> tuple[int, ...] | None:
        """Return ids[first:end] if no extra key but that of approximate tokens is among them, else
        None."""
        if any(self._extra_key(position) for position in range(first, end)):
            return None
        return tuple(ids[first:end])

    def _key(self, position: int) -> bytes:
        approximate = self.approximate_from is not None and position >= self.approximate_from
        return self._extra_key(position) + (self._approximate if approximate else b"")

    def hash_of(self, ids: list[int], n_blocks: int) -> bytes:
        """Return the hash of the first `n_blocks` full blocks of `ids`."""
        hashes = self._hashes
        while len(hashes) <= n_blocks:
            first = (len(hashes) - 1) * BLOCK_TOKENS
            packed = _IDS.pack(*ids[first : first + BLOCK_TOKENS])
            keys = [self._key(first + i) for i in range(BLOCK_TOKENS)]
            data = hashes[-1] + packed + _hash_of_extra_keys(keys)
            hashes.append(_hash(data, WITH_EXTRA_KEYS if any(keys) else b""))
        return hashes[n_blocks]


@dataclass(frozen=True, slots=True)
class CachedBlock:
    """Entry of a block in the prefix cache.

    parent_hash  hash of the text before its tokens
    block_hash   hash of the text including them; None for a partial block
    first        position of ids[0]
    ids          its first tokens
    plain_ids    their ids, whatever text is before them; None for tokens with extra keys
    salt         that of the text
    """

    parent_hash: bytes
    block_hash: bytes | None
    first: int
    ids: tuple[Token, ...]
    plain_ids: tuple[int, ...] | None
    salt: str


class PrefixCache:
    """Index of blocks by content. It does not know references or use."""

    def __init__(self) -> None:
        self._cached: dict[int, CachedBlock] = {}
        self._by_hash: dict[bytes, int] = {}
        self._children: dict[bytes, list[int]] = {}

    def __contains__(self, block: int) -> bool:
        return block in self._cached

    def cached(self, block: int) -> CachedBlock | None:
        return self._cached.get(block)

    def entries(self) -> ItemsView[int, CachedBlock]:
        """Return all blocks with their entries."""
        return self._cached.items()

    def entry(self, block: int) -> CachedBlock:
        """Return the entry of a cached block."""
        return self._cached[block]

    def parent(self, block: int) -> int | None:
        """Return the block of the text right before that of `block`; None if it is not cached."""
        return self._by_hash.get(self._cached[block].parent_hash)

    def children(self, block: int) -> Sequence[int]:
        """Return the blocks whose text follows that of `block`, a full one or not."""
        block_hash = self._cached[block].block_hash
        return () if block_hash is None else self._children.get(block_hash, ())

    def full_block(self, block_hash: bytes) -> int | None:
        """Return the full block whose text has this hash; None if there is none."""
        return self._by_hash.get(block_hash)

    def longest_part(self, parent_hash: bytes, rest: tuple[Token, ...]) -> tuple[int | None, int]:
        """Return the block after the text with this hash that begins with the most tokens of
        `rest`, and how many; None and 0 if none does."""
        source, n_rest = None, 0
        for block in self._children.get(parent_hash, ()):
            n = _n_common(self._cached[block].ids, rest)
            if n > n_rest:
                source, n_rest = block, n
        return source, n_rest

    def block_like(self, entry: CachedBlock) -> int | None:
        """Return a block with the text of `entry`, of this cache or another; None if there is
        none."""
        siblings = self._children.get(entry.parent_hash, ())
        return next((b for b in siblings if _begins(self._cached[b].ids, entry.ids)), None)

    def insert(
        self, block: int, ids: list[int], first: int, n: int, block_hashes: BlockHashes
    ) -> list[int]:
        """Index `block` by ids[first : first + n], its first tokens, unless another block holds the
        same.

        Returns the blocks that are no longer cached, because this one holds more.
        """
        parent_hash, part = (
            block_hashes.hash_of(ids, first // BLOCK_TOKENS),
            block_hashes.tokens(ids, first, first + n),
        )
        others = [b for b in self._children.get(parent_hash, ()) if b != block]
        if any(_begins(self._cached[other].ids, part) for other in others):
            return [block] if self.remove(block) else []
        replaced = [other for other in others if _begins(part, self._cached[other].ids)]
        for old in (block, *replaced):
            self.remove(old)
        is_full = n == BLOCK_TOKENS
        block_hash = block_hashes.hash_of(ids, first // BLOCK_TOKENS + 1) if is_full else None
        plain_ids = block_hashes.plain_ids(ids, first, first + n)
        self._cached[block] = CachedBlock(
            parent_hash, block_hash, first, part, plain_ids, block_hashes.salt
        )
        self._children.setdefault(parent_hash, []).append(block)
        if block_hash is not None:
            self._by_hash[block_hash] = block
        return replaced

    def remove(self, block: int) -> bool:
        """Remove `block` from the cache, before it is overwritten; return whether it was cached."""
        cached = self._cached.pop(block, None)
        if cached is None:
            return False
        siblings = self._children[cached.parent_hash]
        siblings.remove(block)
        if not siblings:
            del self._children[cached.parent_hash]
        if cached.block_hash is not None:
            del self._by_hash[cached.block_hash]
        return True


def _hash(data: bytes, person: bytes = b"") -> bytes:
    return blake2b(data, digest_size=HASH_BYTES, person=person).digest()


def _hash_of_extra_keys(extra_keys: list[bytes]) -> bytes:
    """Return the hash of extra keys, and nothing if there are none, so that hashes of plain texts
    are of their ids alone."""
    if not any(extra_keys):
        return b""
    return _hash(b"".join(len(key).to_bytes() + key for key in extra_keys))


def _begins(text: tuple[Token, ...], beginning: tuple[Token, ...]) -> bool:
    return text[: len(beginning)] == beginning


def _n_common(a: tuple[Token, ...], b: tuple[Token, ...]) -> int:
    for n, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return n
    return min(len(a), len(b))
