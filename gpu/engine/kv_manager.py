"""Assignment of KV blocks to runs: cached blocks of the prompt's prefix, free ones for the rest.

A run gets blocks when it computes the tokens for them. It starts if the cache has room for its
prompt beside those of the running ones, and one more block for each of them; what runs write later
may not fit, then the scheduler preempts one. Blocks without an owner count as free even while they
are in the prefix cache. Cached blocks in host memory (`RunnerLimits.n_host_blocks`) are copied to
free ones when a prompt begins with them. Host logic only.

The device must get `copies`, then the tables of `changed_tables`, before the next step. It runs
submissions in order, so a block is reused only after all steps that used it before, and tokens can
be matched as soon as their step is submitted. Tokens past a stop may be in a block too, but only
tokens that a sequence accepted enter the prefix cache; the others are overwritten before they are
read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpu.engine.sequence import Sequence
from gpu.info import RunnerLimits
from gpu.kv.block_pool import BlockPool
from gpu.kv.blocks import BLOCK_TOKENS, blocks_for
from gpu.kv.chunks import Chunk
from gpu.kv.copies import BlockCopy, KvCopy, TokenMove, TokenMoves
from gpu.kv.prefix_cache import BlockHashes, PrefixMatch
from gpu.kv.slide import BlockMoves, slide_moves, token_moves, unread_blocks
from gpu.kv.state import KvState

NO_MATCH = PrefixMatch()


@dataclass(frozen=True, slots=True)
class BorrowedBlocks:
    """Blocks for `ids` outside of any run, in order, for the table of `slot`. After `copies` the
    first `n_reused` tokens are in place; the rows of the others may be computed."""

    slot: int
    ids: list[int]
    blocks: list[int]
    n_reused: int
    copies: tuple[KvCopy, ...]
    block_hashes: BlockHashes


class KvManager:
    """Blocks of all runs. `prefix_cache` False: runs reuse no prefix; borrowed blocks still do.

    In a model whose layers all have a sliding window, blocks that every later row is past are
    freed. Their entries in the table repeat a block that the run still has: a kernel may load keys
    before the window, with weight 0, and must not find another run's there.
    """

    def __init__(self, limits: RunnerLimits, *, prefix_cache: bool = True) -> None:
        self.pool = BlockPool(limits.n_blocks, limits.n_host_blocks)
        self._window = limits.window
        self._max_rows = limits.max_rows
        self.copies = self.pool.copies
        """Copies of blocks for the device to make, in order, before the next step."""
        self.changed_tables: list[Sequence] = []
        """Sequences whose table changed since it was last written."""
        self.reuses_prefixes = prefix_cache
        self._running: dict[Sequence, None] = {}
        self._borrowed: BorrowedBlocks | None = None
        self.n_prompt = self.n_reused = 0
        """Tokens of the prompts that started, and those of them that were found."""
        self.n_loaded = 0
        """Tokens found that came from host memory."""
        self.n_moved = 0
        """Tokens of the prompts that were found after another text, see `reuse_chunks`."""
        self._n_copies = 0

    @property
    def n_free(self) -> int:
        """Number of blocks without an owner."""
        return self.pool.n_free

    def admit(self, sequence: Sequence) -> bool:
        """Give a sequence its cached prefix; return False if too few blocks are free for the rest
        of its prompt."""
        match = self._match_prefix(sequence)
        needed = self._most_at_once(sequence) - len(match.blocks)
        needed += sum(map(self._soon_needed, self._running))
        if needed > self.pool.n_free_beside(match):
            return False
        self._running[sequence] = None
        if not sequence.n_preemptions:
            self.n_prompt += sequence.n_known
        self._attach(sequence, match)
        return True

    def match_again(self, sequence: Sequence) -> None:
        """Match the prefix again before the first token of a prompt is computed: a prompt that
        begins the same may have entered the cache meanwhile."""
        match = self._match_prefix(sequence)
        if match.n_tokens > sequence.n_matched:
            self.pool.free(sequence.blocks)
            self._attach(sequence, match)

    def reuse_chunks(self, sequence: Sequence) -> None:
        """Move chunks of a prompt that are cached after another text to their new positions, if the
        sequence wants that and enough blocks are free. To be called before its first row."""
        least = sequence.cache_reuse
        if not (least and self.reuses_prefixes) or sequence.n_preemptions:
            return
        if sequence.n_known > sequence.context:
            return  # positions will change while it is read
        first = sequence.n_prefilled
        end = first + sequence.n_to_prefill - 1  # the last token is computed: its logits are needed
        if sequence.block_hashes.plain_ids(sequence.ids, first, end) is None:
            return
        chunks = self.pool.find_chunks(sequence.ids, first, end, least)
        sources = list(dict.fromkeys(block for chunk in chunks for block in chunk.blocks))
        self.pool.hold(sources)
        missing = blocks_for(chunks[-1].end) - len(sequence.blocks) if chunks else 0
        taken = self.pool.allocate(max(0, missing))
        if chunks and taken is not None:
            sequence.blocks += taken
            self.copies.append(TokenMoves(tuple(_moves(chunks, sequence.blocks))))
            self.n_moved += sum(len(chunk.places) for chunk in chunks)
            sequence.reuse_chunks(chunks)
            self._note_changed(sequence)
        self.pool.free(sources)

    def cover(self, sequence: Sequence, position: int, n_rows: int = 1) -> bool:
        """Allocate blocks for the next `n_rows` rows of a sequence, the last at `position`; return
        False, without any, if too few are free."""
        self._free_before_window(sequence, position + 1 - n_rows)
        missing = blocks_for(position + 1) - len(sequence.blocks)
        if missing > 0:
            assert self._borrowed is None, "return what was borrowed before the next step"
            taken = self.pool.allocate(missing)
            if taken is None:
                return False
            sequence.blocks += taken
            self._note_changed(sequence)
        return True

    def slide(self, sequence: Sequence) -> bool:
        """Move what stays of a full context to its beginning, see `gpu.kv.slide`; return False,
        without a change, if too few blocks are free."""
        sliding, old = sequence.sliding, sequence.blocks
        assert sliding is not None
        assert self._borrowed is None, "return what was borrowed before the next step"
        unread = [old[i] for i in unread_blocks(sliding)]
        steps = slide_moves(sliding)
        if not self._has_room_to_slide(old, unread, steps):
            return False
        self._enter(sequence)
        self.pool.free(unread)
        blocks: list[int] = []
        moves: list[TokenMove] = []
        for step in steps:
            taken = self.pool.allocate(1)
            assert taken is not None, "there are fewer free blocks than were counted"
            (block,) = taken
            if any(move.source // BLOCK_TOKENS == block for move in moves):
                self.copies.append(TokenMoves(tuple(moves)))  # before the block is overwritten
                moves = []
            moves += token_moves(step, old, block)
            self.pool.free([old[i] for i in step.consumed])
            blocks.append(block)
        self.copies.append(TokenMoves(tuple(moves)))
        sequence.blocks = blocks
        sequence.n_slid += sliding.n_drop
        self._note_changed(sequence)
        return True

    def _has_room_to_slide(
        self, old: list[int], unread: list[int], steps: list[BlockMoves]
    ) -> bool:
        """Return whether a block is free for each step, counting those that become free before."""

        def n_own(blocks: Iterable[int]) -> int:
            return sum(self.pool.ref_counts[block] == 1 for block in blocks)

        free = self.pool.n_free + n_own(unread)
        for step in steps:
            if not free:
                return False
            free += n_own(old[i] for i in step.consumed) - 1
        return True

    def room(self, sequence: Sequence) -> int:
        """Return how many tokens a sequence could have if it took all free blocks."""
        return (len(sequence.blocks) + self.pool.n_free) * BLOCK_TOKENS

    def _free_before_window(self, sequence: Sequence, position: int) -> None:
        """Free the blocks that rows from `position` on do not read."""
        if self._window is None:
            return
        n = max(0, position + 1 - self._window) // BLOCK_TOKENS
        if n <= sequence.n_freed or n >= len(sequence.blocks):
            return
        self._enter(sequence)
        self.pool.free(sequence.blocks[sequence.n_freed : n])
        sequence.blocks[:n] = [sequence.blocks[n]] * n
        sequence.n_freed = n
        self._note_changed(sequence)

    def release(self, sequence: Sequence) -> None:
        """Free the blocks of a finished or preempted sequence; its tokens stay cached until the
        blocks are needed."""
        self._enter(sequence)
        self.pool.free(sequence.owned_blocks)
        sequence.blocks, sequence.n_freed = [], 0
        del self._running[sequence]
        if sequence in self.changed_tables:
            self.changed_tables.remove(sequence)

    # ---- outside of runs --------------------------------------------------------------------

    def borrow(
        self, slot: int, ids: list[int], first: int, block_hashes: BlockHashes
    ) -> BorrowedBlocks | None:
        """Return blocks for `ids`, those before `first` from the cache if possible; None if too few
        are free. Runs may need them, so they must be given back before the next step."""
        assert self._borrowed is None, "return what was borrowed before"
        assert not self.copies, "carry out the copies of the runs first"
        self._enter_running()
        match = self.pool.match_prefix(ids, first, block_hashes)
        if blocks_for(len(ids)) - len(match.blocks) > self.pool.n_free_beside(match):
            return None
        blocks = self._take(match, blocks_for(len(ids)))
        copies = tuple(self.copies)
        self.copies.clear()
        self._borrowed = BorrowedBlocks(slot, ids, blocks, match.n_tokens, copies, block_hashes)
        return self._borrowed

    def give_back(self, borrowed: BorrowedBlocks, n_computed: int = 0) -> None:
        """Give back borrowed blocks. `n_computed`: leading tokens whose keys and values are now in
        place; they enter the prefix cache."""
        assert borrowed is self._borrowed, "this was returned before"
        self._borrowed = None
        self.pool.insert(borrowed.ids, n_computed, borrowed.blocks, borrowed.block_hashes)
        self.pool.free(borrowed.blocks)

    def state(self) -> KvState:
        self._enter_running()
        pool = self.pool
        held = [pool.cached(block) for block in range(pool.n_blocks)]
        first = [-1 if h is None else h.first for h in held]
        for sequence in self._running:
            for i, block in enumerate(sequence.owned_blocks, sequence.n_freed):
                first[block] = i * BLOCK_TOKENS
        return KvState(
            BLOCK_TOKENS,
            owners=tuple(pool.ref_counts),
            first=tuple(first),
            n_found=tuple(0 if h is None else len(h.ids) for h in held),
            used=tuple(pool.last_used),
            prompt_tokens=self.n_prompt,
            reused_tokens=self.n_reused,
            copies=self._n_copies,
            evictions=pool.n_evicted,
            host_blocks=pool.host.n_places,
            used_host_blocks=len(pool.host),
            stored=pool.n_stored,
            loaded=pool.n_loaded,
            moved_tokens=self.n_moved,
            tables=tuple((s.number, tuple(s.owned_blocks)) for s in self._running),
        )

    # ---- inside -----------------------------------------------------------------------------

    def _match_prefix(self, sequence: Sequence) -> PrefixMatch:
        """Match all tokens to prefill but the last, whose logits are needed."""
        if not self.reuses_prefixes:
            return NO_MATCH
        self._enter_running()
        most = min(sequence.n_known - 1, sequence.context)
        return self.pool.match_prefix(sequence.ids, most, sequence.block_hashes)

    def _attach(self, sequence: Sequence, match: PrefixMatch) -> None:
        """Make the sequence begin after its cached prefix, or after as much of it as there are
        blocks free for what must be copied."""
        match = match.fitting(self.pool.n_free_beside(match))
        if self.pool.n_free_beside(match) == len(match.in_host):
            match = match.without_part()
        sequence.blocks = self._take(match, blocks_for(match.n_tokens))
        if not sequence.n_preemptions:
            self.n_reused += match.n_tokens - sequence.n_matched
            self.n_loaded += len(match.in_host) * BLOCK_TOKENS
        sequence.reuse_prefix(match.n_tokens)
        self._note_changed(sequence)

    def _take(self, match: PrefixMatch, n: int) -> list[int]:
        """Return the blocks of a match and free ones, `n` together, of which there must be enough.
        After the copies the match is in place."""
        blocks = self.pool.attach(match)
        taken = self.pool.allocate(n - len(blocks))
        assert taken is not None, "there are fewer free blocks than were counted"
        # The last free block may be the source itself; then nothing is to be copied.
        if match.source is not None and match.source != taken[0]:
            self._n_copies += 1
            self.copies.append(BlockCopy(match.source, taken[0]))
        return blocks + taken

    def _note_changed(self, sequence: Sequence) -> None:
        if sequence not in self.changed_tables:
            self.changed_tables.append(sequence)

    def _enter_running(self) -> None:
        """Enter what runs computed since the last call into the prefix cache. Not done token by
        token, so that it costs a step nothing."""
        for sequence in self._running:
            self._enter(sequence)

    def _enter(self, sequence: Sequence) -> None:
        if sequence.n_slid:
            return  # its blocks hold no text that another one could begin with
        self.pool.insert(
            sequence.ids,
            sequence.n_computed,
            sequence.blocks,
            sequence.block_hashes,
            sequence.n_freed,
        )

    def _most_at_once(self, sequence: Sequence) -> int:
        """Return the blocks that a sequence needs for the rest of its prompt and the next token."""
        if self._window is None:
            return sequence.blocks_to_start
        return min(sequence.blocks_to_start, blocks_for(self._window + self._max_rows) + 1)

    def _soon_needed(self, sequence: Sequence) -> int:
        """Return the blocks that a running sequence needs for the rest of its prompt, at least the
        next one it writes to."""
        return max(1, self._most_at_once(sequence) - len(sequence.owned_blocks))


def _moves(chunks: list[Chunk], blocks: list[int]) -> Iterator[TokenMove]:
    """Yield the moves that bring chunks to their positions in the sequence of `blocks`."""
    for chunk in chunks:
        for position, place in enumerate(chunk.places, chunk.first):
            block, cell = divmod(position, BLOCK_TOKENS)
            yield TokenMove(place, blocks[block] * BLOCK_TOKENS + cell, chunk.shift)
