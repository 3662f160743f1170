"""Allocator of KV cache blocks, with reference counts and LRU eviction. Host logic only."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from gpu.kv.block_table import BlockTable
from gpu.kv.blocks import BLOCK_TOKENS, blocks_for
from gpu.kv.cache_reuse import ReusableChunk, find_reusable_chunks, reusable_in_all_groups
from gpu.kv.copies import HostLoad, HostStore, KvCopy
from gpu.kv.host_cache import HostCache
from gpu.kv.prefix_cache import BlockHashes, CachedBlock, PrefixCache
from gpu.kv.prefix_match import PrefixMatches, host_key, match_prefix


class BlockPool:
    """KV blocks with reference counts: one reference per sequence whose block table names the
    block. `windows`: of each group of layers (`gpu.kv.groups`); any block may serve any group.

    Blocks in the prefix cache may have several references, as their tokens are never written again.
    A block without a reference is free. Uncached free blocks are allocated first, then cached ones,
    least recently used first. Of the blocks of a text, which are freed together, the last ones are
    overwritten first, as more texts share its beginning. Blocks that left a sliding window are
    overwritten before all others.

    With `n_host_blocks` places in host memory, full blocks that are evicted go there, and come back
    when their text is matched.
    """

    def __init__(
        self, n_blocks: int, n_host_blocks: int = 0, windows: Sequence[int | None] = (None,)
    ) -> None:
        self.n_blocks = n_blocks
        self.windows = tuple(windows)
        self.n_evicted = 0
        self.host = HostCache(n_host_blocks)
        self.n_stored = self.n_loaded = 0
        """Blocks copied to host memory so far, and back."""
        self.copies: list[KvCopy] = []
        """Copies for the device to make, in order, before the next step."""
        self.ref_counts = [0] * n_blocks
        self.last_used = [0] * n_blocks
        """Event number of each block's last allocation, match or release."""
        self._events = 0
        self._caches = tuple(PrefixCache() for _ in windows)
        self._uncached = list(range(n_blocks - 1, -1, -1))
        self._evictable: OrderedDict[int, None] = OrderedDict()  # free and cached; first goes first

    @property
    def n_free(self) -> int:
        return len(self._uncached) + len(self._evictable)

    def n_unreferenced(self, blocks: tuple[int, ...]) -> int:
        return sum(self.ref_counts[block] == 0 for block in blocks)

    def allocate(self, n: int) -> list[int] | None:
        """Return `n` free blocks, each with one reference; None if there are fewer."""
        if n > self.n_free:
            return None
        return [self._allocate() for _ in range(n)]

    def n_free_beside(self, match: PrefixMatches) -> int:
        """Return how many blocks are free, not counting those of a match."""
        return self.n_free - self.n_unreferenced(match.blocks)

    def attach(self, match: PrefixMatches) -> list[list[int]]:
        """Add a reference to the matched blocks and return those of each group in the order of the
        text. Those in host memory are copied to free blocks, of which there must be enough."""
        self.touch(match)
        with self.host.pin(match.in_host):
            return [
                [self._load(b) if isinstance(b, bytes) else b for b in group.full if b is not None]
                for group in match.groups
            ]

    def touch(self, match: PrefixMatches) -> None:
        """Add a reference to the matched blocks; blocks to copy from are only marked as used."""
        for group in match.groups:
            if group.source is not None:
                if group.source in self._evictable:
                    self._evictable.move_to_end(group.source)
                self._use(group.source)
            self.hold(list(group.blocks))

    def free(self, blocks: list[int]) -> None:
        """Remove a reference from each block; `blocks` are in the order of their text."""
        for block in reversed(blocks):
            assert self.ref_counts[block] > 0, f"block {block} is freed, but has no references"
            self.ref_counts[block] -= 1
            self._use(block)
            if self.ref_counts[block] == 0:
                self._release(block)

    def free_behind_window(self, blocks: list[int]) -> None:
        """Free blocks that a sliding window has left. They are overwritten before other free
        blocks, so that a long text does not evict what others can still find."""
        self.free(blocks)
        for block in reversed(blocks):
            if block in self._evictable:
                self._evictable.move_to_end(block, last=False)

    # ---- prefix cache -----------------------------------------------------------------------

    def match_prefix(
        self,
        ids: list[int],
        most: int,
        block_hashes: BlockHashes,
        windows: Sequence[int | None] | None = None,
    ) -> PrefixMatches:
        """Return the longest prefix of ids[:most] that is cached on the device or in host memory,
        see `gpu.kv.prefix_match`. `windows`: sliding windows of the groups for this text, before
        which no block is needed; None: their own."""
        windows = windows or self.windows
        return match_prefix(self._caches, windows, ids, most, block_hashes, self.host)

    def find_reusable_chunks(
        self, ids: list[int], first: int, end: int, least: int, salt: str
    ) -> list[ReusableChunk]:
        """Return the chunks of ids[first:end] that are cached on the device after another text, see
        `gpu.kv.cache_reuse`."""
        chunks = find_reusable_chunks(self._caches[0], ids, first, end, least, salt)
        return reusable_in_all_groups(chunks, self._caches, least)

    def hold(self, blocks: list[int]) -> None:
        """Add a reference to cached blocks, in the order of their text."""
        for block in reversed(blocks):
            self._evictable.pop(block, None)
            self.ref_counts[block] += 1
            self._use(block)

    def cached(self, block: int) -> CachedBlock | None:
        """Return the prefix cache's entry of a block, or None."""
        group = self.group_of(block)
        return None if group is None else self._caches[group].cached(block)

    def group_of(self, block: int) -> int | None:
        """Return the group whose prefix cache has a block; None if it is not cached."""
        return next((g for g, cache in enumerate(self._caches) if block in cache), None)

    def insert(
        self,
        ids: list[int],
        n: int,
        table: BlockTable,
        block_hashes: BlockHashes,
        group: int = 0,
    ) -> None:
        """Add the blocks of a group's table to the prefix cache: they hold ids[:n], computed or
        already submitted to the device."""
        cache = self._caches[group]
        for i in range(table.n_freed, min(blocks_for(n), len(table.blocks))):
            block = table.blocks[i]
            cached = cache.cached(block)
            first = i * BLOCK_TOKENS
            n_here = min(BLOCK_TOKENS, n - first)
            if cached is None or len(cached.ids) < n_here:
                for lost in cache.insert(block, ids, first, n_here, block_hashes):
                    if lost in self._evictable:
                        del self._evictable[lost]
                        self._uncached.append(lost)

    def forget(self, blocks: list[int], group: int) -> None:
        """Remove blocks of a group's table from the prefix cache, and their copies in host memory:
        what they hold is wrong."""
        for block in blocks:
            cached = self._caches[group].cached(block)
            if cached is not None and cached.block_hash is not None:
                self.host.forget(host_key(group, cached.block_hash))
            self._caches[group].remove(block)

    def _allocate(self) -> int:
        if self._uncached:
            block = self._uncached.pop()
        else:
            block = next(iter(self._evictable))
            del self._evictable[block]
            self._store(block)
            for cache in self._caches:
                cache.remove(block)
            self.n_evicted += 1
        self.ref_counts[block] = 1
        self._use(block)
        return block

    def _store(self, block: int) -> None:
        """Have a cached block copied to host memory before it is overwritten, if it is full."""
        group, cached = self.group_of(block), self.cached(block)
        if group is None or cached is None or cached.block_hash is None:
            return
        if (place := self.host.store(host_key(group, cached.block_hash))) is not None:
            self.copies.append(HostStore(block, place))
            self.n_stored += 1

    def _load(self, key: bytes) -> int:
        """Return a new block to which one in host memory is copied."""
        block = self._allocate()
        self.copies.append(HostLoad(self.host.place(key), block))
        self.n_loaded += 1
        return block

    def _release(self, block: int) -> None:
        if self.group_of(block) is not None:
            self._evictable[block] = None
        else:
            self._uncached.append(block)

    def _use(self, block: int) -> None:
        self._events += 1
        self.last_used[block] = self._events
