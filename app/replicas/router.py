"""Choice of the replica for a request: the one that has the most of its prefix cached, else the
least loaded.

A replica that has no free slot is only chosen if none has one: computing a prefix again takes less
time than waiting for a text to end. The router does not ask the replicas what they have cached; it
remembers the prompts that it sent them, by the chained hashes of their blocks
(`gpu.kv.prefix_cache`), as many blocks as their caches hold.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from gpu import BLOCK_TOKENS, BlockHashes


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """Load of a replica: runs that write or wait, and runs it can have at once."""

    n_runs: int
    n_slots: int

    @property
    def has_slot(self) -> bool:
        return self.n_runs < self.n_slots


class PrefixRouter:
    """Router over `n_replicas`. Not thread-safe."""

    def __init__(self, n_replicas: int) -> None:
        self._sent = [OrderedDict[bytes, None]() for _ in range(n_replicas)]
        self._last = 0

    def order(self, ids: list[int], loads: Mapping[int, ReplicaLoad], salt: str = "") -> list[int]:
        """Return the replicas of `loads`, the best for a prompt of `ids` first. `salt`: its
        `cache_salt`."""
        n_replicas = len(self._sent)

        def rank(replica: int) -> tuple[bool, int, int, int]:
            load = loads[replica]
            n_cached = self.n_cached(replica, ids, salt)
            turn = (replica - self._last - 1) % n_replicas
            if load.has_slot:
                return (False, -n_cached, load.n_runs, turn)
            return (True, load.n_runs, -n_cached, turn)

        return sorted(loads, key=rank)

    def n_cached(self, replica: int, ids: list[int], salt: str = "") -> int:
        """Return how many leading blocks of `ids` a replica was sent before."""
        hashes, sent = BlockHashes(salt=salt), self._sent[replica]
        n_blocks = len(ids) // BLOCK_TOKENS
        return next(
            (n for n in range(n_blocks) if hashes.hash_of(ids, n + 1) not in sent), n_blocks
        )

    def note_sent(self, replica: int, ids: list[int], n_blocks: int, salt: str = "") -> None:
        """Remember that a replica computes `ids`. `n_blocks`: blocks that its cache holds."""
        self._last = replica
        hashes, sent = BlockHashes(salt=salt), self._sent[replica]
        for n in range(len(ids) // BLOCK_TOKENS):
            block = hashes.hash_of(ids, n + 1)
            sent[block] = None
            sent.move_to_end(block)
        while len(sent) > n_blocks:
            sent.popitem(last=False)

    def forget(self, replica: int) -> None:
        """Forget what a replica was sent: its cache is gone."""
        self._sent[replica].clear()
