"""Allocator of KV cache blocks, with reference counts. Host logic only."""

from __future__ import annotations

from gpu.kv.blocks import BLOCK_TOKENS, blocks_for
from gpu.kv.chunks import Chunk, find_chunks
from gpu.kv.copies import HostLoad, HostStore, KvCopy
from gpu.kv.host_cache import HostCache
from gpu.kv.prefix_cache import BlockHashes, CachedBlock, PrefixCache, PrefixMatch


class BlockPool:
    """KV blocks with reference counts: one reference per sequence whose block table names the
    block.

    Blocks in the prefix cache may have several references, as their tokens are never written again.
    A block without a reference is free. Uncached free blocks are allocated first, then cached ones,
    least recently used first. A text's blocks are freed together; its last blocks count as used
    before its first, which more texts share.

    With `n_host_blocks` places in host memory, full blocks that are evicted go there, and come back
    when their text is matched.
    """

    def __init__(self, n_blocks: int, n_host_blocks: int = 0) -> None:
        self.n_blocks = n_blocks
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
        self._cache = PrefixCache()
        self._uncached = list(range(n_blocks - 1, -1, -1))
        self._evictable: dict[int, None] = {}  # free and cached; least recently used first

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

    def n_free_beside(self, match: PrefixMatch) -> int:
        """Return how many blocks are free beside those of a match."""
        return self.n_free - self.n_unreferenced(match.blocks)

    def attach(self, match: PrefixMatch) -> list[int]:
        """Add a reference to the matched blocks and return them in the order of the text. Those in
        host memory are copied to free blocks, of which there must be enough."""
        self.touch(match)
        with self.host.pin(match.in_host):
            return [self._load(b) if isinstance(b, bytes) else b for b in match.full]

    def touch(self, match: PrefixMatch) -> None:
        """Add a reference to the matched blocks; the block to copy from is only marked as used."""
        if match.source in self._evictable:
            del self._evictable[match.source]
            self._evictable[match.source] = None
        if match.source is not None:
            self._use(match.source)
        self.hold(list(match.blocks))

    def free(self, blocks: list[int]) -> None:
        """Remove a reference from each block; `blocks` are in the order of their text."""
        for block in reversed(blocks):
            assert self.ref_counts[block] > 0, f"block {block} is freed, but has no references"
            self.ref_counts[block] -= 1
            self._use(block)
            if self.ref_counts[block] == 0:
                self._release(block)

    # ---- prefix cache -----------------------------------------------------------------------

    def match_prefix(self, ids: list[int], most: int, block_hashes: BlockHashes) -> PrefixMatch:
        """Return the longest prefix of ids[:most] that is cached on the device or in host memory,
        see `PrefixCache.match_prefix`."""
        return self._cache.match_prefix(ids, most, block_hashes, self.host)

    def find_chunks(self, ids: list[int], first: int, end: int, least: int) -> list[Chunk]:
        """Return the chunks of ids[first:end] that are cached on the device after another text, see
        `gpu.kv.chunks`."""
        return find_chunks(self._cache, ids, first, end, least)

    def hold(self, blocks: list[int]) -> None:
        """Add a reference to cached blocks, in the order of their text."""
        for block in reversed(blocks):
            self._evictable.pop(block, None)
            self.ref_counts[block] += 1
            self._use(block)

    def cached(self, block: int) -> CachedBlock | None:
        """Return the prefix cache's entry of a block, or None."""
        return self._cache.cached(block)

    def insert(
        self,
        ids: list[int],
        n: int,
        blocks: list[int],
        block_hashes: BlockHashes,
        n_freed: int = 0,
    ) -> None:
        """Add `blocks` to the prefix cache: they hold ids[:n], computed or already submitted to the
        device. The first `n_freed` are others' by now."""
        for i, block in enumerate(blocks[: blocks_for(n)]):
            if i < n_freed:
                continue
            cached = self._cache.cached(block)
            first = i * BLOCK_TOKENS
            n_here = min(BLOCK_TOKENS, n - first)
            if cached is None or len(cached.ids) < n_here:
                for lost in self._cache.insert(block, ids, first, n_here, block_hashes):
                    if lost in self._evictable:
                        del self._evictable[lost]
                        self._uncached.append(lost)

    def _allocate(self) -> int:
        if self._uncached:
            block = self._uncached.pop()
        else:
            block = next(iter(self._evictable))
            del self._evictable[block]
            self._store(block)
            self._cache.remove(block)
            self.n_evicted += 1
        self.ref_counts[block] = 1
        self._use(block)
        return block

    def _store(self, block: int) -> None:
        """Have a cached block copied to host memory before it is overwritten, if it is full."""
        cached = self._cache.cached(block)
        if cached is None or cached.block_hash is None:
            return
        if (place := self.host.store(cached.block_hash)) is not None:
            self.copies.append(HostStore(block, place))
            self.n_stored += 1

    def _load(self, block_hash: bytes) -> int:
        """Return a new block to which one in host memory is copied."""
        block = self._allocate()
        self.copies.append(HostLoad(self.host.place(block_hash), block))
        self.n_loaded += 1
        return block

    def _release(self, block: int) -> None:
        if block in self._cache:
            self._evictable[block] = None
        else:
            self._uncached.append(block)

    def _use(self, block: int) -> None:
        self._events += 1
        self.last_used[block] = self._events
