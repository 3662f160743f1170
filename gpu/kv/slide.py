"""Texts that go on when the context is full: attention sinks. Host logic only.

When every position of the context is taken, the oldest tokens but the first `n_keep` leave the
cache, and those after them move to their places: keys are rotated to the new positions, values
copied. The first tokens stay because much of the attention goes to them, whatever they are; without
them a model falls apart (Xiao et al. 2024, "Efficient Streaming Language Models with Attention
Sinks", who keep four). It is approximate: what stays was computed while it saw what left.

A quarter of the movable tokens leave at a time. So a key is rotated a few times in its life, not
once for every token, and moving costs little.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpu.kv.blocks import BLOCK_TOKENS, blocks_for
from gpu.kv.copies import TokenMove

ATTENTION_SINKS = 4
LEAST_MOVABLE = 4 * BLOCK_TOKENS
"""Fewest tokens beside those that stay."""
SHARES = 4
"""One part in so many of the tokens that do not stay leaves at a time."""


@dataclass(frozen=True, slots=True)
class SlidingContext:
    """Positions of a text of any length in a context of `context` tokens, the first `n_keep` of
    which stay. `n_drop` others leave at a time, as soon as there is no position for the next."""

    context: int
    n_keep: int

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


@dataclass(frozen=True, slots=True)
class BlockMoves:
    """Moves that fill one block of the new table. Afterwards the old blocks `consumed` are not read
    any more."""

    moves: tuple[tuple[int, int, int], ...]
    consumed: tuple[int, ...]


def slide_moves(sliding: SlidingContext) -> list[BlockMoves]:
    """Return the moves out of a full context, block by block of the new one: (old position, new
    position, shift). Blocks are numbers in the old table."""
    keep, drop, context = sliding.n_keep, sliding.n_drop, sliding.context
    sources = [*range(keep), *range(keep + drop, context)]
    found = []
    last_read = {source // BLOCK_TOKENS: at for at, source in enumerate(sources)}
    for first in range(0, len(sources), BLOCK_TOKENS):
        here = range(first, min(first + BLOCK_TOKENS, len(sources)))
        moves = tuple((sources[at], at, at - sources[at]) for at in here)
        consumed = tuple(block for block, at in last_read.items() if at in here)
        found.append(BlockMoves(moves, consumed))
    return found


def unread_blocks(sliding: SlidingContext) -> list[int]:
    """Return the blocks of the old table that hold only tokens that leave."""
    first, end = sliding.n_keep, sliding.n_keep + sliding.n_drop
    whole = range(blocks_for(first), end // BLOCK_TOKENS)
    return [*whole]


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
