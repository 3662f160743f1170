"""KV blocks by content (prefix cache) and by references (block pool)."""

from __future__ import annotations

import struct
from hashlib import blake2b

import pytest

from gpu.kv.block_pool import BlockPool
from gpu.kv.block_table import BlockTable
from gpu.kv.blocks import BLOCK_TOKENS, blocks_for
from gpu.kv.prefix_cache import BlockHashes, PrefixCache
from gpu.kv.prefix_match import PrefixMatch, match_prefix

TEXT = [1 + i % 7 for i in range(100)]


def ids_packed(ids: list[int]) -> bytes:
    return struct.pack(f"<{len(ids)}I", *ids)


# ---- hashes and matches ----------------------------------------------------------------------


def filled(texts: dict[int, list[int]]) -> PrefixCache:
    """Return a cache with blocks 0, 1, … of each text, numbered from its key on."""
    cache = PrefixCache()
    for block, ids in texts.items():
        block_hashes = BlockHashes()
        for i in range(blocks_for(len(ids))):
            n = min(BLOCK_TOKENS, len(ids) - i * BLOCK_TOKENS)
            cache.insert(block + i, ids, i * BLOCK_TOKENS, n, block_hashes)
    return cache


def matched(cache: PrefixCache, ids: list[int], most: int, hashes: BlockHashes) -> PrefixMatch:
    (found,) = match_prefix((cache,), (None,), ids, most, hashes).groups
    return found


@pytest.mark.parametrize(
    ("most", "match"),
    [
        (0, PrefixMatch()),
        (1, PrefixMatch((), 10, 1)),
        (15, PrefixMatch((), 10, 15)),
        (16, PrefixMatch((10,), None, 16)),
        (17, PrefixMatch((10,), 11, 17)),
        (40, PrefixMatch((10, 11), 12, 40)),
        (41, PrefixMatch((10, 11), 12, 40)),
        (99, PrefixMatch((10, 11), 12, 40)),
    ],
)
def test_matches_full_blocks_and_then_the_beginning_of_one(most: int, match: PrefixMatch) -> None:
    assert matched(filled({10: TEXT[:40]}), TEXT, most, BlockHashes()) == match


def test_a_text_that_diverges_inside_a_block_finds_the_longest_match() -> None:
    cache = filled({0: TEXT[:32], 2: [*TEXT[:20], 99, 98]})
    assert matched(cache, [*TEXT[:20], 50], 21, BlockHashes()).n_tokens == 20
    assert matched(cache, [*TEXT[:20], 99, 50], 22, BlockHashes()) == PrefixMatch((0,), 3, 21)
    assert matched(cache, [*TEXT[:24], 50], 25, BlockHashes()) == PrefixMatch((0,), 1, 24)


def test_the_same_tokens_after_another_text_are_not_the_same() -> None:
    """Keys and values depend on all tokens before."""
    other = [9] * BLOCK_TOKENS + TEXT[BLOCK_TOKENS:32]
    cache = filled({0: TEXT[:32]})
    assert matched(cache, other, 32, BlockHashes()) == PrefixMatch()
    names = [BlockHashes().hash_of(ids, 2) for ids in (TEXT, other)]
    assert names[0] != names[1]
    assert BlockHashes().hash_of(TEXT[16:], 1) != BlockHashes().hash_of(TEXT, 2)


def test_texts_with_another_salt_share_nothing() -> None:
    """Neither full blocks nor the beginning of one."""
    cache = PrefixCache()
    for block, first in ((0, 0), (1, BLOCK_TOKENS)):
        cache.insert(block, TEXT, first, BLOCK_TOKENS, BlockHashes(salt="mine"))
    assert matched(cache, TEXT, 32, BlockHashes(salt="mine")) == PrefixMatch((0, 1), None, 32)
    assert matched(cache, TEXT, 31, BlockHashes(salt="mine")) == PrefixMatch((0,), 1, 31)
    for salt in ("", "yours"):
        for most in (31, 32, 5):
            assert matched(cache, TEXT, most, BlockHashes(salt=salt)) == PrefixMatch()


def test_hashes_of_a_growing_text_equal_those_of_a_new_one() -> None:
    block_hashes, ids = BlockHashes(), TEXT[:20]
    first = block_hashes.hash_of(ids, 1)
    ids += TEXT[20:]
    assert block_hashes.hash_of(ids, 6) == BlockHashes().hash_of(TEXT, 6)
    assert block_hashes.hash_of(ids, 1) == first


def with_extra_key(first: int, mark: bytes = b"off") -> BlockHashes:
    """Return the hashes of a text with an extra key from position `first` on."""
    return BlockHashes(lambda position: mark if position >= first else b"")


def test_hashes_of_plain_texts_are_unchanged() -> None:
    """Pinned hashes: they must not change, or cached blocks are lost."""
    assert (
        BlockHashes().hash_of(TEXT, 1).hex()
        == blake2b(ids_packed(TEXT[:16]), digest_size=32).hexdigest()
    )
    assert BlockHashes(lambda _: b"").hash_of(TEXT, 3) == BlockHashes().hash_of(TEXT, 3)


def test_interventions_are_part_of_a_blocks_hash() -> None:
    chains = [
        BlockHashes(),
        with_extra_key(0),
        with_extra_key(0, b"on"),
        with_extra_key(15),
        with_extra_key(16),
        with_extra_key(40),
        with_extra_key(48),
    ]
    names = [block_hashes.hash_of(TEXT, 3) for block_hashes in chains]
    assert len(set(names[:-1])) == len(chains) - 1
    assert names[-1] == names[0], "what comes after these blocks does not count"
    assert with_extra_key(20).hash_of(TEXT, 1) == BlockHashes().hash_of(TEXT, 1)
    assert with_extra_key(20).hash_of(TEXT, 5) == with_extra_key(20).hash_of(TEXT, 5)


@pytest.mark.parametrize(
    ("held", "asked", "n"),
    [
        (None, 0, 0),
        (0, None, 0),
        (0, 0, 40),
        (None, 20, 20),
        (20, None, 20),
        (20, 20, 40),
        (20, 25, 20),
        (32, 35, 32),
    ],
)
def test_blocks_are_shared_as_long_as_extra_keys_are_equal(
    held: int | None, asked: int | None, n: int
) -> None:
    def block_hashes(first: int | None) -> BlockHashes:
        return BlockHashes() if first is None else with_extra_key(first)

    cache = PrefixCache()
    of_held = block_hashes(held)
    for i in range(3):
        cache.insert(i, TEXT, 16 * i, min(16, 40 - 16 * i), of_held)
    assert matched(cache, TEXT, 99, block_hashes(asked)).n_tokens == n


def test_blocks_with_different_extra_keys_do_not_replace_each_other() -> None:
    cache = filled({0: TEXT[:8]})
    assert cache.insert(1, TEXT, 0, 12, with_extra_key(4)) == []
    assert cache.insert(2, TEXT, 0, 6, with_extra_key(4)) == []
    assert (0 in cache, 1 in cache, 2 in cache) == (True, True, False)
    assert matched(cache, TEXT, 99, BlockHashes()) == PrefixMatch((), 0, 8)
    assert matched(cache, TEXT, 99, with_extra_key(4)) == PrefixMatch((), 1, 12)


def test_a_block_with_more_tokens_replaces_one_with_fewer() -> None:
    cache = filled({0: TEXT[:8]})
    assert cache.insert(1, TEXT, 0, 5, BlockHashes()) == []
    assert 1 not in cache
    assert cache.insert(2, TEXT, 0, 12, BlockHashes()) == [0]
    assert matched(cache, TEXT, 99, BlockHashes()) == PrefixMatch((), 2, 12)
    assert cache.remove(2)
    assert not cache.remove(2)
    assert matched(cache, TEXT, 99, BlockHashes()) == PrefixMatch()


# ---- references and eviction -----------------------------------------------------------------


def kept(pool: BlockPool, ids: list[int]) -> list[int]:
    """Free blocks that hold `ids`."""
    blocks = pool.allocate(blocks_for(len(ids)))
    assert blocks is not None
    pool.insert(ids, len(ids), BlockTable(blocks), BlockHashes())
    pool.free(blocks)
    return blocks


def test_blank_blocks_go_first_then_the_least_recently_used_from_its_end() -> None:
    pool = BlockPool(7)
    old, new = kept(pool, [1] * 48), kept(pool, [2] * 48)
    taken = pool.allocate(1)
    assert taken is not None
    assert taken[0] not in (*old, *new)
    assert pool.n_evicted == 0
    found = pool.match_prefix([1] * 48, 20, BlockHashes())
    pool.touch(found)
    pool.free(list(found.blocks))
    assert found.groups == (PrefixMatch((old[0],), old[1], 20),)
    assert pool.allocate(6) == [old[2], new[2], new[1], new[0], old[1], old[0]]
    assert pool.n_evicted == 6
    assert (
        pool.match_prefix([1] * 48, 48, BlockHashes()).n_tokens
        == pool.match_prefix([2] * 48, 48, BlockHashes()).n_tokens
        == 0
    )


def test_a_free_block_that_another_replaces_is_uncached() -> None:
    pool = BlockPool(3)
    kept(pool, [9] * 16)
    short = kept(pool, TEXT[:5])
    kept(pool, TEXT[:9])
    assert pool.allocate(1) == short
    assert pool.n_evicted == 0


def test_shared_blocks_are_free_when_the_last_owner_gives_them_back() -> None:
    pool = BlockPool(3)
    kept(pool, TEXT[:32])
    found = pool.match_prefix(TEXT, 32, BlockHashes())
    assert pool.n_unreferenced(found.blocks) == 2
    pool.touch(found)
    pool.touch(found)
    assert pool.n_unreferenced(found.blocks) == 0
    for _ in range(2):
        assert pool.allocate(2) is None
        pool.free(list(found.blocks))
    assert pool.allocate(3) is not None
    with pytest.raises(AssertionError, match="no references"):
        pool.free([0, 0])
