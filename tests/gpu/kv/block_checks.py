"""Invariants of KV blocks, checked by a model that sees the text in every cell."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from gpu.engine.kv_manager import KvManager
from gpu.engine.sequence import Sequence
from gpu.kv.block_pool import BlockPool
from gpu.kv.blocks import BLOCK_TOKENS
from gpu.kv.prefix_cache import BlockHashes, Token

Text = tuple[Token, ...]
Cells = Mapping[tuple[int, int], Text]
"""(block, cell): the text up to the token in it, as keys and values depend on all of it."""


def check_owners(
    kv: KvManager,
    running: Iterable[Sequence],
    waiting: Iterable[Sequence] = (),
    borrowed: Iterable[list[int]] = (),
) -> None:
    """Check that every block counts its owners, that only one run may write to it, and that
    waiting runs have none."""
    assert not any(sequence.tables for sequence in waiting)
    running = list(running)
    named = [block for sequence in running for block in sequence.owned_blocks]
    named += [block for blocks in borrowed for block in blocks]
    assert kv.pool.ref_counts == [named.count(block) for block in range(kv.pool.n_blocks)]
    check_free(kv.pool)
    for sequence in running:
        owned = sequence.owned_blocks
        assert len(set(owned)) == len(owned), "a table names a block twice"
        for table in sequence.tables:
            assert set(table.blocks) == set(table.owned), "a table names others' blocks"
            for block in table.blocks[sequence.n_computed // BLOCK_TOKENS :]:
                assert kv.pool.ref_counts[block] == 1, f"block {block} is written and shared"


def check_free(pool: BlockPool) -> None:
    """Check that the free blocks are those without an owner, each once, and in the right list."""
    uncached, evictable = pool._uncached, list(pool._evictable)
    free = [block for block in range(pool.n_blocks) if pool.ref_counts[block] == 0]
    assert sorted([*uncached, *evictable]) == free, "a block leaked, or is free twice"
    assert pool.n_free == len(free)
    assert all(pool.cached(block) is None for block in uncached)
    assert all(pool.cached(block) is not None for block in evictable)


def cached_texts(pool: BlockPool, cells: Cells) -> dict[int, tuple[int, Text]]:
    """Return for each cached block the position of its first token and the whole text in its cells.
    Check that they hold what the cache says."""
    found = {}
    for block in range(pool.n_blocks):
        if (held := pool.cached(block)) is not None:
            text = cells[block, len(held.ids) - 1]
            assert text[held.first :] == held.ids
            n_before = held.first // BLOCK_TOKENS
            assert held.parent_hash == hashes_of(text).hash_of(ids_of(text), n_before)
            found[block] = held.first, text
    return found


def check_matches(
    pool: BlockPool,
    cells: Cells,
    text: Text,
    most: int,
    in_host: Collection[tuple[int, Text]] = (),
) -> None:
    """Check the longest prefix of text[:most] by looking at every cached block. `in_host`: group
    and whole text up to the end of each block in host memory."""
    found = [
        (pool.group_of(block), first, text)
        for block, (first, text) in cached_texts(pool, cells).items()
    ]
    full = {(g, held) for g, first, held in found if len(held) == first + BLOCK_TOKENS}
    full.update(in_host)
    groups = list(enumerate(pool.windows))

    def has_all(n: int) -> bool:
        """Return whether every group has the blocks that a row after `n` full ones reads."""
        return all(
            (group, text[: (i + 1) * BLOCK_TOKENS]) in full
            for group, window in groups
            for i in range(n)
            if window is None
            or i == n - 1
            or (i + 1) * BLOCK_TOKENS > n * BLOCK_TOKENS + 1 - window
        )

    n_full = max(n for n in range(most // BLOCK_TOKENS + 1) if has_all(n))
    start = n_full * BLOCK_TOKENS
    longest = [start] * len(groups)
    for group, first, held in found:
        if first == start and held[:start] == text[:start]:
            n = start
            while n < min(most, len(held), start + BLOCK_TOKENS) and held[n] == text[n]:
                n += 1
            longest[group or 0] = max(longest[group or 0], n)
    match = pool.match_prefix(ids_of(text), most, hashes_of(text))
    assert match.n_tokens == min(longest)
    assert match.n_full == n_full


def ids_of(text: Text) -> list[int]:
    """Return the ids of a text without their extra keys."""
    return [token if isinstance(token, int) else token[0] for token in text]


def hashes_of(text: Text) -> BlockHashes:
    """Return the hashes of a text under its extra keys."""

    def extra_key(position: int) -> bytes:
        token = text[position]
        return b"" if isinstance(token, int) else token[1]

    return BlockHashes(extra_key)
