"""Who owns the KV cache's blocks, and which of them nobody owns. Host logic only."""

from __future__ import annotations

from gpu.kv.blocks import BLOCK_TOKENS, blocks_for
from gpu.kv.prefix_cache import Chain, Held, Match, PrefixCache


class BlockPool:
    """Blocks by owner. A block has one owner for each sequence whose table names it; one that can
    be found by its tokens may have many, as nobody writes those tokens again.

    A block without an owner is free. Free blocks that cannot be found are taken first; then those
    that can, the least recently used first. A text's blocks are given back together and its last
    ones count as used before its first, which more texts begin with.
    """

    def __init__(self, n_blocks: int) -> None:
        self.n_blocks = n_blocks
        self.n_evicted = 0
        self.owners = [0] * n_blocks
        self.used = [0] * n_blocks
        """When each block was last taken, found or given back: a count of such events."""
        self._events = 0
        self._cache = PrefixCache()
        self._blank = list(range(n_blocks - 1, -1, -1))
        self._kept: dict[int, None] = {}  # free but found; least recently used first

    @property
    def n_free(self) -> int:
        return len(self._blank) + len(self._kept)

    def n_unowned(self, blocks: tuple[int, ...]) -> int:
        return sum(self.owners[block] == 0 for block in blocks)

    def take(self, n: int) -> list[int] | None:
        """`n` free blocks, each with one owner now; None when there are fewer."""
        if n > self.n_free:
            return None
        return [self._take() for _ in range(n)]

    def share(self, match: Match) -> None:
        """Found blocks get one owner more; the one to copy from is only used."""
        if match.source in self._kept:
            del self._kept[match.source]
            self._kept[match.source] = None
        if match.source is not None:
            self._use(match.source)
        for block in reversed(match.blocks):
            self._kept.pop(block, None)
            self.owners[block] += 1
            self._use(block)

    def give_back(self, blocks: list[int]) -> None:
        """Each has one owner less; `blocks` are in the order of their text."""
        for block in reversed(blocks):
            assert self.owners[block] > 0, f"block {block} has no owner to give it back"
            self.owners[block] -= 1
            self._use(block)
            if self.owners[block] == 0:
                self._free(block)

    # ---- by tokens --------------------------------------------------------------------------

    def find(self, ids: list[int], most: int, chain: Chain) -> Match:
        """See `PrefixCache.find`."""
        return self._cache.find(ids, most, chain)

    def held(self, block: int) -> Held | None:
        """What a block is found by; None when it is not."""
        return self._cache.held(block)

    def enter(self, ids: list[int], n: int, blocks: list[int], chain: Chain) -> None:
        """Let `blocks` be found: they hold ids[:n], computed or on their way on the device."""
        for i, block in enumerate(blocks[: blocks_for(n)]):
            held = self._cache.held(block)
            first = i * BLOCK_TOKENS
            n_here = min(BLOCK_TOKENS, n - first)
            if held is None or len(held.ids) < n_here:
                for lost in self._cache.enter(block, ids, first, n_here, chain):
                    if lost in self._kept:
                        del self._kept[lost]
                        self._blank.append(lost)

    def _take(self) -> int:
        if self._blank:
            block = self._blank.pop()
        else:
            block = next(iter(self._kept))
            del self._kept[block]
            self._cache.forget(block)
            self.n_evicted += 1
        self.owners[block] = 1
        self._use(block)
        return block

    def _free(self, block: int) -> None:
        if block in self._cache:
            self._kept[block] = None
        else:
            self._blank.append(block)

    def _use(self, block: int) -> None:
        self._events += 1
        self.used[block] = self._events
