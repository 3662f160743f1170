"""KV blocks that leave the device for host memory are found there, and hold what they held."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu.kv.block_pool import BlockPool
from gpu.kv.block_table import BlockTable
from gpu.kv.blocks import BLOCK_TOKENS, blocks_for
from gpu.kv.copies import BlockCopy, HostStore
from gpu.kv.host_cache import HostCache
from gpu.kv.prefix_cache import BlockHashes


def test_the_least_recently_used_place_is_used_again() -> None:
    cache = HostCache(2)
    assert [cache.store(name) for name in (b"a", b"b")] == [0, 1]
    assert cache.store(b"a") is None, "it is here already, and used now"
    assert cache.store(b"c") == 1
    assert [name in cache for name in (b"a", b"b", b"c")] == [True, False, True]
    assert (cache.place(b"a"), len(cache)) == (0, 2)


def test_what_is_copied_back_keeps_its_place_meanwhile() -> None:
    cache = HostCache(3)
    for name in (b"a", b"b", b"c"):
        cache.store(name)
    with cache.pin((b"a", b"b")):
        assert cache.store(b"d") == 2
        assert cache.store(b"e") == 2
    with cache.pin((b"a", b"b", b"e")):
        assert cache.store(b"f") is None
    assert cache.store(b"g") == 2, "of a text, the last block is lost first"


def test_without_host_memory_nothing_is_stored() -> None:
    assert HostCache(0).store(b"a") is None


@dataclass
class TextPool:
    """A pool whose blocks hold texts, as a device would carry out its copies."""

    pool: BlockPool
    held: dict[int, tuple[int, ...]] = field(default_factory=dict)
    host: dict[int, tuple[int, ...]] = field(default_factory=dict)
    found: int = 0

    def write(self, ids: list[int]) -> None:
        """Take the cached prefix of a text, compute the rest, and release all."""
        hashes = BlockHashes()
        match = self.pool.match_prefix(ids, len(ids) - 1, hashes)
        if blocks_for(len(ids)) - len(match.blocks) > self.pool.n_free_beside(match):
            return
        (blocks,) = self.pool.attach(match)
        self.found += len(match.in_host)
        taken = self.pool.allocate(blocks_for(len(ids)) - len(blocks))
        assert taken is not None
        blocks += taken
        self.carry_out()
        for i in range(match.n_full):
            assert self.held[blocks[i]] == tuple(ids[: (i + 1) * BLOCK_TOKENS])
        for i, block in enumerate(blocks):
            self.held[block] = tuple(ids[: (i + 1) * BLOCK_TOKENS])
        self.pool.insert(ids, len(ids), BlockTable(blocks), hashes)
        self.pool.free(blocks)

    def carry_out(self) -> None:
        for copy in self.pool.copies:
            assert not isinstance(copy, BlockCopy)
            if isinstance(copy, HostStore):
                self.host[copy.place] = self.held[copy.block]
            else:
                self.held[copy.block] = self.host[copy.place]
        self.pool.copies.clear()


@given(
    n_blocks=st.integers(1, 6),
    n_places=st.integers(0, 6),
    texts=st.lists(st.lists(st.integers(1, 2), min_size=1, max_size=5), max_size=25),
)
@settings(max_examples=150, deadline=None)
def test_a_text_finds_its_own_blocks_whatever_was_evicted_between(
    n_blocks: int, n_places: int, texts: list[list[int]]
) -> None:
    """Texts of whole blocks of one token each, then one token more."""
    some = TextPool(BlockPool(n_blocks, n_places))
    for text in texts:
        some.write([token for token in text for _ in range(BLOCK_TOKENS)] + [9])
        host = some.pool.host
        assert len(host) <= n_places
        assert some.pool.n_free == n_blocks
        assert some.pool.n_stored <= some.pool.n_evicted
    assert some.pool.n_loaded == some.found
