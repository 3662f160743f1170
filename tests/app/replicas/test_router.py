"""Requests go where their prefix is cached, else to the least loaded replica."""

from __future__ import annotations

from app.replicas.router import PrefixRouter, ReplicaLoad
from gpu import BLOCK_TOKENS

BLOCK = list(range(1, BLOCK_TOKENS + 1))
OTHER = [7] * BLOCK_TOKENS


def loads(*n_runs: int) -> dict[int, ReplicaLoad]:
    """Return the loads of replicas with two slots each."""
    return {i: ReplicaLoad(n, 2) for i, n in enumerate(n_runs)}


def test_prompts_without_a_cached_prefix_go_to_the_least_loaded_in_turn() -> None:
    router = PrefixRouter(3)
    assert router.order(OTHER, loads(1, 0, 1))[0] == 1
    chosen = []
    for _ in range(4):
        chosen.append(router.order([1, 2], loads(0, 0, 0))[0])
        router.note_sent(chosen[-1], [1, 2], 8)
    assert chosen == [1, 2, 0, 1]


def test_the_longest_cached_prefix_decides_among_replicas_with_a_free_slot() -> None:
    router = PrefixRouter(3)
    router.note_sent(0, BLOCK, 8)
    router.note_sent(2, BLOCK + OTHER, 8)
    assert router.order([*BLOCK, *OTHER, 5], loads(0, 0, 1)) == [2, 0, 1]
    assert router.order([*BLOCK, *OTHER, 5], loads(0, 0, 2)) == [0, 1, 2], "it has no free slot"
    assert router.order([*BLOCK, *OTHER, 5], loads(2, 3, 2)) == [2, 0, 1], "none has one"


def test_a_block_counts_only_after_the_blocks_before_it() -> None:
    router = PrefixRouter(1)
    router.note_sent(0, BLOCK + OTHER, 8)
    assert router.n_cached(0, BLOCK + OTHER + [1]) == 2
    assert router.n_cached(0, OTHER + BLOCK) == 0
    assert router.n_cached(0, BLOCK[:-1]) == 0, "no full block"


def test_a_prefix_with_another_salt_is_another() -> None:
    router = PrefixRouter(2)
    router.note_sent(1, BLOCK, 8, "mine")
    router.note_sent(0, OTHER, 8, "mine")
    assert (router.n_cached(1, BLOCK, "mine"), router.n_cached(1, BLOCK, "yours")) == (1, 0)
    assert router.order(BLOCK, loads(1, 1), "mine")[0] == 1
    assert router.order(OTHER, loads(1, 1), "mine")[0] == 0


def test_no_more_blocks_are_remembered_than_the_cache_holds() -> None:
    router = PrefixRouter(1)
    router.note_sent(0, BLOCK, 2)
    router.note_sent(0, [3] * BLOCK_TOKENS, 2)
    router.note_sent(0, BLOCK, 2)  # used again
    router.note_sent(0, OTHER, 2)
    assert router.n_cached(0, BLOCK) == 1
    assert router.n_cached(0, [3] * BLOCK_TOKENS) == 0


def test_a_replica_that_starts_again_has_nothing_cached() -> None:
    router = PrefixRouter(2)
    router.note_sent(0, BLOCK, 8)
    router.note_sent(1, BLOCK, 8)
    router.forget(0)
    assert (router.n_cached(0, BLOCK), router.n_cached(1, BLOCK)) == (0, 1)
