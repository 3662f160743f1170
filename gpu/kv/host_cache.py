"""Index of the KV blocks in host memory (`kv_offload`): those that were evicted from the device.
Host logic only.

Full blocks only, found by the hash of their text (as vLLM's CPU offloading and LMCache do). A block
that is copied back keeps its place, so that it need not be copied again when it is evicted again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager


class HostCache:
    """LRU cache of `n_places` places for blocks in host memory, by the hash of their text."""

    def __init__(self, n_places: int) -> None:
        self.n_places = n_places
        self._places: OrderedDict[bytes, int] = OrderedDict()  # least recently used first
        self._pinned: frozenset[bytes] = frozenset()

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, block_hash: object) -> bool:
        return block_hash in self._places

    def place(self, block_hash: bytes) -> int:
        """Return the place of a block that is here."""
        return self._places[block_hash]

    def store(self, block_hash: bytes) -> int | None:
        """Return the place to which an evicted block is to be copied; None if it is here already,
        or all places are taken by pinned blocks."""
        if block_hash in self._places:
            self._places.move_to_end(block_hash)
            return None
        place = len(self._places)
        if place == self.n_places:
            lost = next((other for other in self._places if other not in self._pinned), None)
            if lost is None:
                return None
            place = self._places.pop(lost)
        self._places[block_hash] = place
        return place

    def forget(self, block_hash: bytes) -> None:
        """Let nobody find a block any more; its place is the next to be taken."""
        place = self._places.pop(block_hash, None)
        if place is not None:
            key = b"free %d" % place  # no hash is so short
            self._places[key] = place
            self._places.move_to_end(key, last=False)

    @contextmanager
    def pin(self, hashes: tuple[bytes, ...]) -> Iterator[None]:
        """Use the blocks `hashes`, in the order of their text, and keep them here meanwhile: they
        are copied to device blocks whose evicted contents may be stored here at the same time."""
        self._pinned = frozenset(hashes)
        for block_hash in reversed(hashes):
            self._places.move_to_end(block_hash)
        try:
            yield
        finally:
            self._pinned = frozenset()
