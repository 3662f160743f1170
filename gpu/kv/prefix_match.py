"""Look-up in the prefix cache: the longest cached prefix of a text, in the `gpu.kv.prefix_cache` of
every group of layers. Host logic only.

A full-attention group needs all blocks of a prefix. A sliding-window group needs only those in the
window of the next row, so a prefix is found even if the blocks before them were freed and evicted.
A prefix counts as cached if every group has the blocks that it needs.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

from gpu.kv.blocks import BLOCK_TOKENS
from gpu.kv.prefix_cache import BlockHashes, PrefixCache


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """Cached prefix of a text in one group: `n_tokens` tokens, the first in `full` blocks, the rest
    at the start of the block `source`.

    A full block is a number if it is on the device, and its key if it is in host memory (see
    `host_key`); None for one that has left the window.
    """

    full: tuple[int | bytes | None, ...] = ()
    source: int | None = None
    n_tokens: int = 0

    @property
    def blocks(self) -> tuple[int, ...]:
        """Full blocks on the device."""
        return tuple(block for block in self.full if isinstance(block, int))

    @property
    def in_host(self) -> tuple[bytes, ...]:
        """Keys of the full blocks in host memory."""
        return tuple(block for block in self.full if isinstance(block, bytes))

    @property
    def n_freed(self) -> int:
        """Leading full blocks that have left the window."""
        return sum(block is None for block in self.full)

    def without_part(self) -> PrefixMatch:
        """Return the full blocks alone."""
        return PrefixMatch(self.full, None, len(self.full) * BLOCK_TOKENS)


@dataclass(frozen=True, slots=True)
class PrefixMatches:
    """Cached prefix of a text in every group, as many tokens in each."""

    groups: tuple[PrefixMatch, ...]

    @property
    def n_tokens(self) -> int:
        return self.groups[0].n_tokens

    @property
    def n_full(self) -> int:
        """Full blocks of the text that are found."""
        return len(self.groups[0].full)

    @property
    def blocks(self) -> tuple[int, ...]:
        """Full blocks on the device, of all groups."""
        return tuple(block for group in self.groups for block in group.blocks)

    @property
    def in_host(self) -> tuple[bytes, ...]:
        """Keys of the full blocks in host memory, of all groups."""
        return tuple(key for group in self.groups for key in group.in_host)

    @property
    def n_full_in_host(self) -> int:
        """Full blocks of the text that are in host memory for any group."""
        texts = zip(*(group.full for group in self.groups), strict=True)
        return sum(any(isinstance(block, bytes) for block in blocks) for blocks in texts)

    @property
    def sources(self) -> list[int]:
        """Blocks whose beginning is copied, one of each group or none."""
        return [group.source for group in self.groups if group.source is not None]

    def without_part(self) -> PrefixMatches:
        """Return the full blocks alone."""
        return PrefixMatches(tuple(group.without_part() for group in self.groups))


def host_key(group: int, block_hash: bytes) -> bytes:
    """Return the key of a group's block in host memory."""
    return block_hash + bytes([group]) if group else block_hash


def match_prefix(
    caches: Sequence[PrefixCache],
    windows: Sequence[int | None],
    ids: list[int],
    most: int,
    block_hashes: BlockHashes,
    host: Container[bytes] = (),
) -> PrefixMatches:
    """Return the longest prefix of ids[:most] that is cached in every group; `block_hashes` belongs
    to `ids`. `host`: keys of the blocks in host memory, for those that are not on the device."""
    n, found = most // BLOCK_TOKENS, []
    for group, (cache, window) in enumerate(zip(caches, windows, strict=True)):
        blocks = _full_blocks(cache, group, ids, n, block_hashes, host, whole=window is None)
        n = len(blocks)
        found.append(blocks)
    unbroken = [_unbroken(blocks) for blocks in found]
    while n and not all(
        n - first_read(window, n) <= lengths[n - 1]
        for window, lengths in zip(windows, unbroken, strict=True)
    ):
        n -= 1
    at, parent_hash = n * BLOCK_TOKENS, block_hashes.hash_of(ids, n)
    rest = block_hashes.tokens(ids, at, min(at + BLOCK_TOKENS, most))
    parts = [cache.longest_part(parent_hash, rest) for cache in caches]
    n_rest = min(n_common for _, n_common in parts)
    groups = []
    for window, blocks, (source, _) in zip(windows, found, parts, strict=True):
        first = first_read(window, n)
        full = (None,) * first + tuple(blocks[first:n])
        groups.append(PrefixMatch(full, source if n_rest else None, at + n_rest))
    return PrefixMatches(tuple(groups))


def first_read(window: int | None, n_full: int) -> int:
    """Return the first of `n_full` full blocks that a row right after them may read, the last of
    them at most."""
    if window is None or not n_full:
        return 0
    return min(n_full - 1, max(0, n_full * BLOCK_TOKENS + 1 - window) // BLOCK_TOKENS)


def _full_blocks(
    cache: PrefixCache,
    group: int,
    ids: list[int],
    most: int,
    block_hashes: BlockHashes,
    host: Container[bytes],
    *,
    whole: bool,
) -> list[int | bytes | None]:
    """Return where the first `most` full blocks are, None for those that are not cached. `whole`:
    only up to the first of these."""
    found: list[int | bytes | None] = []
    while len(found) < most:
        block_hash = block_hashes.hash_of(ids, len(found) + 1)
        block: int | bytes | None = cache.full_block(block_hash)
        if block is None and host_key(group, block_hash) in host:
            block = host_key(group, block_hash)
        if block is None and whole:
            break
        found.append(block)
    return found


def _unbroken(blocks: list[int | bytes | None]) -> list[int]:
    """Return how many blocks up to each are cached without one missing between them."""
    lengths: list[int] = []
    for block in blocks:
        before = lengths[-1] if lengths else 0
        lengths.append(0 if block is None else before + 1)
    return lengths
