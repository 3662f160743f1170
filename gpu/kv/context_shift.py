"""Context shift with attention sinks, for texts that fill the context; on the wire it is called
`slide`. Host logic only.

When every position of the context is taken, the oldest tokens but the first `n_keep` leave the
cache, and those after them move to their places: keys are rotated to the new positions, values
copied. The first tokens stay because much of the attention goes to them, whatever they are; without
them a model falls apart (Xiao et al. 2024, "Efficient Streaming Language Models with Attention
Sinks", who keep four). It is approximate: what stays was computed while it saw what left.

A quarter of the shiftable tokens leave at a time. So a key is rotated a few times in its life, not
once for every token, and moving costs little.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpu.kv.blocks import BLOCK_TOKENS, blocks_for, held_tokens
from gpu.kv.copies import TokenMove

ATTENTION_SINKS = 4
LEAST_SHIFTABLE = 4 * BLOCK_TOKENS
"""Fewest tokens in addition to those that stay."""
SHARES = 4
"""One part in so many of the tokens that do not stay leaves at a time."""


@dataclass(frozen=True, slots=True)
class ContextShift:
    """Context shift of a sequence: positions of a text of any length in a context of `context`
    tokens, the first `n_keep` of which stay. `n_drop` others leave at a time, as soon as there is
    no position for the next."""

    context: int
    n_keep: int

    def n_unread(self, window: int | None) -> int:
        """Return how many leading blocks no row reads right after tokens have left the context."""
        if window is None:
            return 0
        return max(0, self.context - self.n_drop + 1 - window) // BLOCK_TOKENS

    def window_of(self, window: int | None) -> int | None:
        """Return a group's window as long as blocks may be freed behind it: None if the tokens that
        stay are within it once others have left."""
        reaches_kept = window is not None and self.context - self.n_drop + 1 - window < self.n_keep
        return None if reaches_kept else window

    @property
    def n_drop(self) -> int:
        """Tokens that leave at a time: with at least two blocks' one whole block becomes free."""
        return max(2 * BLOCK_TOKENS, (self.context - self.n_keep) // SHARES)

    def n_left(self, index: int) -> int:
        """Return how many tokens have left the cache when token `index` of the text is computed."""
        over = index - self.context
        return 0 if over < 0 else (over // self.n_drop + 1) * self.n_drop

    def position(self, index: int) -> int:
        """Return the position of token `index` of the text when it is computed."""
        return index - self.n_left(index)


def sliding_context(
    context: int, n_keep: int, windows: tuple[int | None, ...], n_blocks: int
) -> int:
    """Return the longest context up to `context` in which a text may slide in `n_blocks` blocks of
    all groups together; less than `n_keep` if there is none. A group whose window reaches the
    tokens that stay frees no blocks, so that the text may need more than one that does not
    slide."""
    while context >= n_keep + LEAST_SHIFTABLE:
        shift = ContextShift(context, n_keep)
        held = (held_tokens(shift.window_of(window), context) for window in windows)
        if sum(map(blocks_for, held)) <= n_blocks:
            return context
        context = (context - 1) // BLOCK_TOKENS * BLOCK_TOKENS
    return 0


@dataclass(frozen=True, slots=True)
class BlockMoves:
    """Moves that fill one block of the new table. Afterwards the old blocks `consumed` are not read
    any more."""

    moves: tuple[tuple[int, int, int], ...]
    consumed: tuple[int, ...]


def context_shift_moves(
    shift: ContextShift, n_freed: int = 0, n_unread: int = 0
) -> tuple[list[BlockMoves], list[int]]:
    """Return the moves out of a full context, block by block of the new one: (old position, new
    position, shift); and the blocks of the old table that nothing moves out of. Blocks are numbers
    in the old table.

    n_freed   leading blocks of the old table that have left the window
    n_unread  leading blocks of the new table that no row will read
    """
    keep, drop, context = shift.n_keep, shift.n_drop, shift.context
    sources = [*range(keep), *range(keep + drop, context)]
    by_block = [
        [
            (sources[at], at, at - sources[at])
            for at in range(first, min(first + BLOCK_TOKENS, len(sources)))
            if sources[at] // BLOCK_TOKENS >= n_freed
        ]
        for first in range(n_unread * BLOCK_TOKENS, len(sources), BLOCK_TOKENS)
    ]
    last_read = {
        source // BLOCK_TOKENS: i for i, moves in enumerate(by_block) for source, *_ in moves
    }
    steps = [
        BlockMoves(tuple(moves), tuple(block for block, last in last_read.items() if last == i))
        for i, moves in enumerate(by_block)
    ]
    unread = [block for block in range(n_freed, blocks_for(context)) if block not in last_read]
    return steps, unread


def token_moves(block: BlockMoves, old: list[int], new: int) -> list[TokenMove]:
    """Return the moves into block `new` as places. `old`: the old table."""
    return [
        TokenMove(
            old[source // BLOCK_TOKENS] * BLOCK_TOKENS + source % BLOCK_TOKENS,
            new * BLOCK_TOKENS + position % BLOCK_TOKENS,
            shift,
        )
        for source, position, shift in block.moves
    ]
