"""Prefill of one sequence: which of its known ids are in the KV cache or on their way."""

from __future__ import annotations

from collections.abc import Iterable

from gpu.events import MovedChunk
from gpu.kv.cache_reuse import ReusableChunk


class Prefill:
    """Progress through the known ids: the prompt, or all ids before a preemption.

    n_known          ids that must be in the cache before a token is drawn
    n_done           of these, found or submitted
    n_matched        of these, found at their beginning
    moved            chunks found after another text, which are moved to their positions
    cache_reuse      shortest chunk that may be moved; 0: none may
    n_reused         prompt tokens found at the beginning when the run started
    n_reused_blocks  full blocks, of all groups, that held these
    moved_at_start   chunks of the prompt that were moved when the run started
    """

    def __init__(self, n_prompt: int, n_known: int, cache_reuse: int) -> None:
        self.n_known = n_known
        self.n_done = 0
        self.n_matched = 0
        self.moved: tuple[MovedChunk, ...] = ()
        self.cache_reuse = cache_reuse
        self.n_reused = 0
        self.n_reused_blocks = 0
        self.moved_at_start: tuple[MovedChunk, ...] = ()
        self._n_prompt = n_prompt
        self._n_prompt_done = 0  # never less after a preemption
        self._is_first = True

    @property
    def is_unread(self) -> bool:
        """Whether nothing was submitted or moved, so that more may be found in the KV cache."""
        return self.n_done == self.n_matched and not self.moved

    @property
    def is_done(self) -> bool:
        return self.n_done >= self.n_known

    @property
    def n_left(self) -> int:
        """Known ids that were neither found nor submitted."""
        ahead = (chunk for chunk in self.moved if chunk.first >= self.n_done)
        return self.n_known - self.n_done - _n_tokens(ahead)

    @property
    def next_found(self) -> int:
        """Index of the next token that need not be computed; behind the known ids if there is
        none."""
        return next((c.first for c in self.moved if c.first >= self.n_done), self.n_known)

    @property
    def n_prompt_moved(self) -> int:
        """Prompt tokens that were moved when the run started, as far as it was read."""
        return _n_tokens(c for c in self.moved_at_start if c.first < self._n_prompt_done)

    @property
    def n_prompt_computed(self) -> int:
        """Prompt tokens that were submitted; those that a resumed run computes again count once."""
        return self._n_prompt_done - self.n_reused - self.n_prompt_moved

    def reuse_prefix(self, n: int, n_blocks: int) -> None:
        """Skip the first `n` known ids, found in the KV cache, of all groups in `n_blocks` full
        blocks. To be called before any row is made."""
        self.n_matched = self.n_done = n
        if self._is_first:
            self.n_reused = self._n_prompt_done = min(n, self._n_prompt)
            self.n_reused_blocks = n_blocks

    def reuse_chunks(self, chunks: Iterable[ReusableChunk]) -> None:
        """Skip chunks of the prompt whose keys and values are moved from another text. To be called
        before any row is made."""
        self.moved = tuple(MovedChunk(c.first, c.end, c.source) for c in chunks)
        self.moved_at_start = self.moved
        self._skip_moved()

    def take(self, n: int) -> range:
        """Return the indices of the next `n` known ids, which are submitted now."""
        taken = range(self.n_done, self.n_done + n)
        self.n_done += n
        self._skip_moved()
        self._n_prompt_done = max(self._n_prompt_done, min(self.n_done, self._n_prompt))
        return taken

    def restart(self) -> None:
        """Begin again after a preemption, without chunks of other texts."""
        self.n_done = self.n_matched = self.cache_reuse = 0
        self.moved = ()
        self._is_first = False

    def _skip_moved(self) -> None:
        for chunk in self.moved:
            if chunk.first == self.n_done:
                self.n_done = chunk.end


def _n_tokens(chunks: Iterable[MovedChunk]) -> int:
    return sum(chunk.end - chunk.first for chunk in chunks)
