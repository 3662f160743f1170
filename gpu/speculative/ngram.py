"""Prompt lookup: drafts are what followed the same tokens earlier in the text (Saxena 2023, "Prompt
Lookup Decoding"; `ngram` in vLLM and llama.cpp)."""

from __future__ import annotations

from collections.abc import Sequence

LONGEST = 4
SHORTEST = 2
"""Tokens at the end of the text that are looked up: fewer only if more were not found."""


class NgramDrafter:
    """Index of the n-grams of one growing text."""

    def __init__(self, longest: int = LONGEST, shortest: int = SHORTEST) -> None:
        self._sizes = range(longest, shortest - 1, -1)
        self._followed_at: dict[tuple[int, ...], int] = {}  # n-gram: where it was followed last
        self._n_indexed = 0

    def extend(self, ids: Sequence[int], end: int) -> None:
        """Index the n-grams that one of ids[:end] follows. Called for pieces of a long text, so
        that no call takes long."""
        for at in range(max(1, self._n_indexed), end):
            for n in self._sizes:
                if n <= at:
                    self._followed_at[tuple(ids[at - n : at])] = at
        self._n_indexed = max(self._n_indexed, end)

    def propose(self, ids: Sequence[int], most: int) -> list[int]:
        """Return up to `most` tokens that may follow `ids`; [] if its end never occurred before.

        Where the earlier occurrence reaches into the end of the text, the text repeats itself, and
        so do the drafts.
        """
        self.extend(ids, len(ids))
        for n in self._sizes:
            at = self._followed_at.get(tuple(ids[-n:])) if n <= len(ids) else None
            if at is not None:
                period = len(ids) - at
                return [ids[at + i % period] for i in range(most)]
        return []
