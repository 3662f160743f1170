"""Cache reuse: search for chunks of a prompt in cached blocks whose text before them differs. Host
logic only.

A prefix is found by the hash of all text before it (`gpu.kv.prefix_cache`). A chunk is found by its
own tokens, wherever they are: its keys are moved to their new positions by a rotation, and its
values copied, as llama.cpp does with `--cache-reuse`. Keys and values of deeper layers depend on
the text before them, so the result is approximate. Only texts with the salt of the prompt are
searched (`gpu.kv.prefix_cache`).

A chunk is found if it holds one whole cached block: 31 tokens in a row always do.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpu.kv.blocks import BLOCK_TOKENS
from gpu.kv.prefix_cache import PrefixCache

MAX_CANDIDATES = 8
"""Most places of one block of tokens that are compared: text that repeats itself has many."""

MAX_COMPARED = 64
"""Most tokens of the cache that are compared for each token of a prompt."""


@dataclass(frozen=True, slots=True)
class ReusableChunk:
    """Tokens first … end − 1 of a prompt, found in the cache at position `source` of another text;
    `places` of the tokens there: block · BLOCK_TOKENS + the token in the block. `elsewhere`: their
    places in each further group of layers (`gpu.kv.groups`)."""

    first: int
    source: int
    places: tuple[int, ...]
    elsewhere: tuple[tuple[int, ...], ...] = ()

    @property
    def end(self) -> int:
        return self.first + len(self.places)

    @property
    def shift(self) -> int:
        """Positions by which its tokens move."""
        return self.first - self.source

    @property
    def blocks(self) -> list[int]:
        """The blocks that hold the keys and values of this chunk, in order, group by group."""
        groups = (self.places, *self.elsewhere)
        return list(dict.fromkeys(p // BLOCK_TOKENS for places in groups for p in places))


def find_reusable_chunks(
    cache: PrefixCache, ids: list[int], first: int, end: int, least: int, salt: str = ""
) -> list[ReusableChunk]:
    """Return chunks of ids[first:end] of at least `least` tokens, in order: at each place the
    longest that is found in a text with this `salt`."""
    search = _Search(cache, ids, end, salt)
    found: list[ReusableChunk] = []
    at = first
    while at + BLOCK_TOKENS <= end:
        if not search.chunks_at(at, first):
            at += 1
            continue
        # Another text may have a longer one, whose blocks begin a few tokens later.
        near = range(at, at + BLOCK_TOKENS)
        chunks = [chunk for place in near for chunk in search.chunks_at(place, first)]
        longest = max(chunks, key=lambda chunk: len(chunk.places))
        if len(longest.places) < least:
            at += 1
            continue
        found.append(longest)
        first = at = longest.end
        search.forget()
    return found


def reusable_in_all_groups(
    chunks: list[ReusableChunk], caches: Sequence[PrefixCache], least: int
) -> list[ReusableChunk]:
    """Return the longest part of each chunk that the caches of all groups hold, without parts of
    less than `least` tokens. The chunks were found in the first cache."""
    if len(caches) == 1:
        return chunks
    parts = [_part_in_all(chunk, caches) for chunk in chunks]
    return [part for part in parts if len(part.places) >= least]


def _part_in_all(chunk: ReusableChunk, caches: Sequence[PrefixCache]) -> ReusableChunk:
    """Return the longest part of a chunk that all caches hold."""
    like = {
        block: [cache.block_like(caches[0].entry(block)) for cache in caches[1:]]
        for block in chunk.blocks
    }
    held = [None not in like[place // BLOCK_TOKENS] for place in chunk.places]
    runs = [
        [at for at, _ in run]
        for is_held, run in itertools.groupby(enumerate(held), key=lambda pair: pair[1])
        if is_held
    ]
    longest = max(runs, key=len, default=[])
    places = tuple(chunk.places[at] for at in longest)
    elsewhere = tuple(
        tuple(
            (like[place // BLOCK_TOKENS][group] or 0) * BLOCK_TOKENS + place % BLOCK_TOKENS
            for place in places
        )
        for group in range(len(caches) - 1)
    )
    skipped = longest[0] if longest else 0
    return ReusableChunk(chunk.first + skipped, chunk.source + skipped, places, elsewhere)


class _Search:
    """Chunks of ids[:end] in texts with `salt`, each compared once. Text that repeats itself has as
    many as it has pairs of places: after `MAX_COMPARED` tokens for each of the prompt nothing more
    is found."""

    def __init__(self, cache: PrefixCache, ids: list[int], end: int, salt: str) -> None:
        self._cache, self._ids, self._end = cache, ids, end
        self._by_content: dict[tuple[int, ...], list[int]] = {}
        for block, cached in cache.entries():
            plain_ids = cached.plain_ids
            if plain_ids is not None and len(plain_ids) == BLOCK_TOKENS and cached.salt == salt:
                self._by_content.setdefault(plain_ids, []).append(block)
        self._left = MAX_COMPARED * end
        # By block and its place in the prompt.
        self._known: dict[tuple[int, int], ReusableChunk] = {}

    def forget(self) -> None:
        """Forget what was extended, as chunks may not begin where they might have before."""
        self._known.clear()

    def chunks_at(self, at: int, first: int) -> list[ReusableChunk]:
        """Return the chunks within ids[first:end] that have a whole block at `at`."""
        if at + BLOCK_TOKENS > self._end or self._left < 0:
            return []
        blocks = self._by_content.get(tuple(self._ids[at : at + BLOCK_TOKENS]), ())
        return [self._chunk_around(block, at, first) for block in blocks[:MAX_CANDIDATES]]

    def _chunk_around(self, block: int, at: int, first: int) -> ReusableChunk:
        """Return the chunk around `block`, which holds the ids at `at`."""
        if (block, at) in self._known:
            return self._known[block, at]
        before = [*self._places_before(block, at, first)]
        places = (*reversed(before), *self._places_from(block, at))
        self._left -= len(places)
        source = self._cache.entry(block).first - len(before)
        chunk = ReusableChunk(at - len(before), source, places)
        for i, place in enumerate(places):
            if place % BLOCK_TOKENS == 0:
                self._known[place // BLOCK_TOKENS, chunk.first + i] = chunk
        return chunk

    def _places_before(self, block: int, at: int, first: int) -> Iterator[int]:
        """Yield the places of equal tokens before `block`, the nearest first."""
        parent = self._cache.parent(block)
        while parent is not None:
            held = self._cache.entry(parent).plain_ids or ()
            for i in range(len(held) - 1, -1, -1):
                at -= 1
                if at < first or held[i] != self._ids[at]:
                    return
                yield parent * BLOCK_TOKENS + i
            parent = self._cache.parent(parent)

    def _places_from(self, block: int | None, at: int) -> Iterator[int]:
        """Yield the places of equal tokens from `block` on, whose first is that at `at`."""
        while block is not None:
            for i, id in enumerate(self._cache.entry(block).plain_ids or ()):
                if at == self._end or id != self._ids[at]:
                    return
                yield block * BLOCK_TOKENS + i
                at += 1
            block = self._next_block(block, at)

    def _next_block(self, block: int, at: int) -> int | None:
        """Return the block after a full one that begins with the most of the ids at `at`; None:
        none does."""
        wanted = self._ids[at : min(at + BLOCK_TOKENS, self._end)]

        def n_equal(other: int) -> int:
            held = self._cache.entry(other).plain_ids or ()
            pairs = zip(held, wanted, strict=False)
            return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))

        best = max(self._cache.children(block), key=n_equal, default=None)
        return best if best is not None and n_equal(best) else None
