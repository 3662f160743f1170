"""KV blocks by what they hold, and by who owns them."""

from __future__ import annotations

import struct
from hashlib import blake2b

import pytest

from gpu.kv.block_pool import BlockPool
from gpu.kv.blocks import BLOCK_TOKENS, blocks_for
from gpu.kv.prefix_cache import Chain, Match, PrefixCache

TEXT = [1 + i % 7 for i in range(100)]


def ids_packed(ids: list[int]) -> bytes:
    return struct.pack(f"<{len(ids)}I", *ids)


# ---- names and matches -----------------------------------------------------------------------


def filled(texts: dict[int, list[int]]) -> PrefixCache:
    """Blocks 0, 1, … of each text, numbered from its key on."""
    cache = PrefixCache()
    for block, ids in texts.items():
        chain = Chain()
        for i in range(blocks_for(len(ids))):
            n = min(BLOCK_TOKENS, len(ids) - i * BLOCK_TOKENS)
            cache.enter(block + i, ids, i * BLOCK_TOKENS, n, chain)
    return cache


@pytest.mark.parametrize(
    ("most", "match"),
    [
        (0, Match()),
        (1, Match((), 10, 1)),
        (15, Match((), 10, 15)),
        (16, Match((10,), None, 16)),
        (17, Match((10,), 11, 17)),
        (40, Match((10, 11), 12, 40)),
        (41, Match((10, 11), 12, 40)),
        (99, Match((10, 11), 12, 40)),
    ],
)
def test_finds_full_blocks_and_then_the_beginning_of_one(most: int, match: Match) -> None:
    assert filled({10: TEXT[:40]}).find(TEXT, most, Chain()) == match


def test_a_text_that_parts_inside_a_block_finds_the_longest_of_them() -> None:
    cache = filled({0: TEXT[:32], 2: [*TEXT[:20], 99, 98]})
    assert cache.find([*TEXT[:20], 50], 21, Chain()).n_tokens == 20
    assert cache.find([*TEXT[:20], 99, 50], 22, Chain()) == Match((0,), 3, 21)
    assert cache.find([*TEXT[:24], 50], 25, Chain()) == Match((0,), 1, 24)


def test_the_same_tokens_after_another_text_are_not_the_same() -> None:
    """Keys and values depend on all that came before."""
    other = [9] * BLOCK_TOKENS + TEXT[BLOCK_TOKENS:32]
    cache = filled({0: TEXT[:32]})
    assert cache.find(other, 32, Chain()) == Match()
    names = [Chain().name(ids, 2) for ids in (TEXT, other)]
    assert names[0] != names[1]
    assert Chain().name(TEXT[16:], 1) != Chain().name(TEXT, 2)


def test_a_chain_names_a_growing_text_as_a_new_one_would() -> None:
    chain, ids = Chain(), TEXT[:20]
    first = chain.name(ids, 1)
    ids += TEXT[20:]
    assert chain.name(ids, 6) == Chain().name(TEXT, 6)
    assert chain.name(ids, 1) == first


def marked(first: int, mark: bytes = b"off") -> Chain:
    """Of a text that is computed under something from position `first` on."""
    return Chain(lambda position: mark if position >= first else b"")


def test_names_of_plain_texts_are_as_ever() -> None:
    """Pinned, because what is kept under a name must not be lost to another way to name it."""
    assert Chain().name(TEXT, 1).hex() == blake2b(ids_packed(TEXT[:16]), digest_size=32).hexdigest()
    assert Chain(lambda _: b"").name(TEXT, 3) == Chain().name(TEXT, 3)


def test_what_a_token_was_computed_under_is_part_of_its_name() -> None:
    chains = [Chain(), marked(0), marked(0, b"on"), marked(15), marked(16), marked(40), marked(48)]
    names = [chain.name(TEXT, 3) for chain in chains]
    assert len(set(names[:-1])) == len(chains) - 1
    assert names[-1] == names[0], "what comes after these blocks does not count"
    assert marked(20).name(TEXT, 1) == Chain().name(TEXT, 1)
    assert marked(20).name(TEXT, 5) == marked(20).name(TEXT, 5)


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
def test_blocks_are_shared_as_far_as_the_same_things_acted(
    held: int | None, asked: int | None, n: int
) -> None:
    def chain(first: int | None) -> Chain:
        return Chain() if first is None else marked(first)

    cache = PrefixCache()
    of_held = chain(held)
    for i in range(3):
        cache.enter(i, TEXT, 16 * i, min(16, 40 - 16 * i), of_held)
    assert cache.find(TEXT, 99, chain(asked)).n_tokens == n


def test_a_block_of_other_interventions_is_neither_outdone_nor_outdoes() -> None:
    cache = filled({0: TEXT[:8]})
    assert cache.enter(1, TEXT, 0, 12, marked(4)) == []
    assert cache.enter(2, TEXT, 0, 6, marked(4)) == []
    assert (0 in cache, 1 in cache, 2 in cache) == (True, True, False)
    assert cache.find(TEXT, 99, Chain()) == Match((), 0, 8)
    assert cache.find(TEXT, 99, marked(4)) == Match((), 1, 12)


def test_a_block_that_holds_more_takes_the_place_of_one_that_holds_less() -> None:
    cache = filled({0: TEXT[:8]})
    assert cache.enter(1, TEXT, 0, 5, Chain()) == []
    assert 1 not in cache
    assert cache.enter(2, TEXT, 0, 12, Chain()) == [0]
    assert cache.find(TEXT, 99, Chain()) == Match((), 2, 12)
    assert cache.forget(2)
    assert not cache.forget(2)
    assert cache.find(TEXT, 99, Chain()) == Match()


# ---- owners and eviction ---------------------------------------------------------------------


def kept(pool: BlockPool, ids: list[int]) -> list[int]:
    """Give back blocks that hold `ids`."""
    blocks = pool.take(blocks_for(len(ids)))
    assert blocks is not None
    pool.enter(ids, len(ids), blocks, Chain())
    pool.give_back(blocks)
    return blocks


def test_blank_blocks_go_first_then_the_least_recently_used_from_its_end() -> None:
    pool = BlockPool(7)
    old, new = kept(pool, [1] * 48), kept(pool, [2] * 48)
    taken = pool.take(1)
    assert taken is not None
    assert taken[0] not in (*old, *new)
    assert pool.n_evicted == 0
    found = pool.find([1] * 48, 20, Chain())
    pool.share(found)
    pool.give_back(list(found.blocks))
    assert found == Match((old[0],), old[1], 20)
    assert pool.take(6) == [old[2], new[2], new[1], new[0], old[1], old[0]]
    assert pool.n_evicted == 6
    assert pool.find([1] * 48, 48, Chain()) == pool.find([2] * 48, 48, Chain()) == Match()


def test_a_free_block_that_another_outdoes_is_blank() -> None:
    pool = BlockPool(3)
    kept(pool, [9] * 16)
    short = kept(pool, TEXT[:5])
    kept(pool, TEXT[:9])
    assert pool.take(1) == short
    assert pool.n_evicted == 0


def test_shared_blocks_are_free_when_the_last_owner_gives_them_back() -> None:
    pool = BlockPool(3)
    kept(pool, TEXT[:32])
    found = pool.find(TEXT, 32, Chain())
    assert pool.n_unowned(found.blocks) == 2
    pool.share(found)
    pool.share(found)
    assert pool.n_unowned(found.blocks) == 0
    for _ in range(2):
        assert pool.take(2) is None
        pool.give_back(list(found.blocks))
    assert pool.take(3) is not None
    with pytest.raises(AssertionError, match="no owner"):
        pool.give_back([0, 0])
