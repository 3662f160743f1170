"""Allocation of KV blocks to runs: cached blocks of the prompt's prefix, free ones for the rest.

Blocks are allocated when their tokens are computed. A run starts if the cache has room for its
prompt in addition to those of the running ones, and for one more block of each of them. If what
they write later does not fit, the scheduler preempts one. Blocks without an owner count as free
even while they are in the prefix cache. Cached blocks in host memory (`RunnerLimits.n_host_blocks`)
are copied to free ones when a prompt begins with them. Host logic only.

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
from gpu.kv.block_table import BlockTable
from gpu.kv.blocks import BLOCK_TOKENS, blocks_for, frees_blocks
from gpu.kv.cache_reuse import ReusableChunk
from gpu.kv.context_shift import BlockMoves, ContextShift, context_shift_moves, token_moves
from gpu.kv.copies import BlockCopy, KvCopy, TokenMove, TokenMoves
from gpu.kv.prefix_cache import BlockHashes
from gpu.kv.prefix_match import PrefixMatches
from gpu.kv.state import KvState

ALL = 1 << 32
"""More blocks than any text has."""


@dataclass(frozen=True, slots=True)
class BorrowedBlocks:
    """Blocks for `ids` outside of any run, for the tables of `slot`, one for each group. After
    `copies` the first `n_reused` tokens are in place; the rows of the others may be computed, in
    order and at most a step's together: a group with a sliding window has blocks for a window and a
    step, which its table repeats.

    owned    blocks of each table, each once
    windows  of each table: tokens behind which the borrower reads nothing; None: it reads all
    """

    slot: int
    ids: list[int]
    tables: list[list[int]]
    owned: list[list[int]]
    n_reused: int
    copies: tuple[KvCopy, ...]
    block_hashes: BlockHashes
    windows: tuple[int | None, ...]


class KvManager:
    """Blocks of all runs. `prefix_cache` False: runs reuse no prefix; borrowed blocks still do.

    Every run has a block table for each group of layers (`gpu.kv.groups`). In a group with a
    sliding window, blocks that every later row is past are freed.
    """

    def __init__(self, limits: RunnerLimits, *, prefix_cache: bool = True) -> None:
        self.windows = limits.windows
        self.pool = BlockPool(limits.n_blocks, limits.n_host_blocks, limits.windows)
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
            self.n_prompt += sequence.prefill.n_known
        self._attach(sequence, match)
        return True

    def match_again(self, sequence: Sequence) -> None:
        """Match the prefix again before the first token of a prompt is computed: a prompt that
        begins the same may have entered the cache meanwhile."""
        match = self._match_prefix(sequence)
        if match.n_tokens > sequence.prefill.n_matched:
            self._free_all(sequence)
            self._attach(sequence, match)

    def begin_alike(self, one: Sequence, other: Sequence, end: int) -> bool:
        """Return whether two prompts have the same keys and values before `end`, which must be
        before the last known token of both: each may reuse the other's."""
        if one.block_hashes.salt != other.block_hashes.salt or one.ids[:end] != other.ids[:end]:
            return False
        n, rest = divmod(end, BLOCK_TOKENS)
        one_end, other_end = (
            (s.block_hashes.hash_of(s.ids, n), s.block_hashes.tokens(s.ids, end - rest, end))
            for s in (one, other)
        )
        return one_end == other_end

    def reuse_chunks(self, sequence: Sequence) -> None:
        """Move chunks of a prompt that are cached after another text to their new positions, if the
        sequence wants that and enough blocks are free. To be called before its first row."""
        prefill = sequence.prefill
        least = prefill.cache_reuse
        if not (least and self.reuses_prefixes):
            return
        if prefill.n_known > sequence.context:
            return  # positions will change while it is read
        first = prefill.n_done
        end = first + prefill.n_left - 1  # the last token is computed: its logits are needed
        hashes = sequence.block_hashes
        if hashes.plain_ids(sequence.ids, first, end) is None:
            return
        chunks = self.pool.find_reusable_chunks(sequence.ids, first, end, least, hashes.salt)
        sources = list(dict.fromkeys(block for chunk in chunks for block in chunk.blocks))
        self.pool.hold(sources)
        if chunks and self._extend(sequence, blocks_for(chunks[-1].end)):
            for group, table in enumerate(sequence.tables):
                moves = tuple(_moves(chunks, table.blocks, group))
                self.copies.append(TokenMoves(moves, group))
            self.n_moved += sum(len(chunk.places) for chunk in chunks)
            prefill.reuse_chunks(chunks)
            hashes.begin_approximate(chunks[0].first)
            self._note_changed(sequence)
        self.pool.free(sources)

    def cover(self, sequence: Sequence, position: int, n_rows: int = 1) -> bool:
        """Allocate blocks for the next `n_rows` rows of a sequence, the last at `position`; return
        False, without any, if too few are free."""
        self._free_before_window(sequence, position + 1 - n_rows)
        return self._extend(sequence, blocks_for(position + 1))

    def _extend(self, sequence: Sequence, n: int) -> bool:
        """Allocate blocks until all tables of a sequence have `n`; return False, without any, if
        too few are free."""
        missing = n - len(sequence.tables[0].blocks)
        if missing <= 0:
            return True
        assert self._borrowed is None, "return what was borrowed before the next step"
        taken = self.pool.allocate(missing * len(sequence.tables))
        if taken is None:
            return False
        for group, table in enumerate(sequence.tables):
            table.blocks += taken[group * missing : (group + 1) * missing]
        self._note_changed(sequence)
        return True

    def shift_context(self, sequence: Sequence) -> bool:
        """Move what stays of a full context to its beginning, see `gpu.kv.context_shift`; return
        False, without a change, if too few blocks are free."""
        context_shift = sequence.context_shift
        assert context_shift is not None
        assert self._borrowed is None, "return what was borrowed before the next step"
        shifts = [
            _TableShift.of(context_shift, table, window)
            for table, window in zip(sequence.tables, self._windows_of(sequence), strict=True)
        ]
        if not self._has_room_to_shift(shifts):
            return False
        self._enter(sequence)
        for shift in shifts:
            self.pool.free(shift.unread)
        sequence.tables = [self._shift_table(shift, group) for group, shift in enumerate(shifts)]
        sequence.n_shifted += context_shift.n_drop
        self._note_changed(sequence)
        return True

    def _shift_table(self, shift: _TableShift, group: int) -> BlockTable:
        """Return the new table of a group, after moving what stays into its blocks."""
        old = shift.old
        blocks: list[int] = []
        moves: list[TokenMove] = []
        for step in shift.steps:
            taken = self.pool.allocate(1)
            assert taken is not None, "there are fewer free blocks than were counted"
            (block,) = taken
            if any(move.source // BLOCK_TOKENS == block for move in moves):
                # before the block is overwritten
                self.copies.append(TokenMoves(tuple(moves), group))
                moves = []
            moves += token_moves(step, old, block)
            self.pool.free([old[i] for i in step.consumed])
            blocks.append(block)
        self.copies.append(TokenMoves(tuple(moves), group))
        return BlockTable.of(shift.n_unread, blocks)

    def _has_room_to_shift(self, shifts: list[_TableShift]) -> bool:
        """Return whether a block is free for each step, counting those that become free before."""

        def n_own(blocks: Iterable[int]) -> int:
            return sum(self.pool.ref_counts[block] == 1 for block in blocks)

        free = self.pool.n_free + sum(n_own(shift.unread) for shift in shifts)
        for shift in shifts:
            for step in shift.steps:
                if not free:
                    return False
                free += n_own(shift.old[i] for i in step.consumed) - 1
        return True

    def room(self, sequence: Sequence) -> int:
        """Return how many tokens a sequence could have if it took all free blocks."""
        n_each = self.pool.n_free // len(sequence.tables)
        return (len(sequence.tables[0].blocks) + n_each) * BLOCK_TOKENS

    def _free_before_window(self, sequence: Sequence, position: int) -> None:
        """Free the blocks that rows from `position` on do not read."""
        for group, window in enumerate(self._windows_of(sequence)):
            table = sequence.tables[group]
            if window is None:
                continue
            n = max(0, position + 1 - window) // BLOCK_TOKENS
            if n <= table.n_freed or n >= len(table.blocks):
                continue
            self._enter_table(sequence, group)
            self.pool.free_behind_window(table.drop(n))
            self._note_changed(sequence)

    def release(self, sequence: Sequence) -> None:
        """Free the blocks of a finished or preempted sequence; its tokens stay cached until the
        blocks are needed, unless nobody may use them."""
        if sequence.keeps_cache:
            self._enter(sequence)
        else:
            for group, table in enumerate(sequence.tables):
                self.pool.forget(table.owned, group)
        self._free_all(sequence)
        del self._running[sequence]
        if sequence in self.changed_tables:
            self.changed_tables.remove(sequence)

    def _free_all(self, sequence: Sequence) -> None:
        for table in sequence.tables:
            self.pool.free(table.owned)
        sequence.tables = []

    # ---- outside of runs --------------------------------------------------------------------

    def borrow(
        self,
        slot: int,
        ids: list[int],
        first: int,
        block_hashes: BlockHashes,
        *,
        all_read: bool = False,
    ) -> BorrowedBlocks | None:
        """Return blocks for `ids`, those before `first` from the cache if possible; None if too few
        are free. Runs may need them, so they must be given back before the next step. `all_read`:
        rows may read keys that are behind the window of their layers."""
        assert self._borrowed is None, "return what was borrowed before"
        assert not self.copies, "carry out the copies of the runs first"
        self._enter_running()
        windows = (None,) * len(self.windows) if all_read else self.windows
        found = self._match_to_borrow(ids, first, block_hashes, windows)
        if found is None:
            return None
        match, counts = found
        n = blocks_for(len(ids))
        taken = self._take(match, counts)
        copies = tuple(self.copies)
        self.copies.clear()
        tables, owned = [], []
        for table, n_new in zip(taken, counts, strict=True):
            new = table.blocks[match.n_full :]
            missing = range(n - len(table.blocks))
            tables.append(table.blocks + [new[i % n_new] for i in missing])
            owned.append(table.owned)
        self._borrowed = BorrowedBlocks(
            slot, ids, tables, owned, match.n_tokens, copies, block_hashes, windows
        )
        return self._borrowed

    def _match_to_borrow(
        self,
        ids: list[int],
        first: int,
        block_hashes: BlockHashes,
        windows: tuple[int | None, ...],
    ) -> tuple[PrefixMatches, list[int]] | None:
        """Return the cached prefix of ids[:first] and how many blocks each group needs after it. If
        too few are free for that, the prefix is empty; if too few are free even then, return
        None."""
        n = blocks_for(len(ids))
        for most in (first, 0):
            match = self.pool.match_prefix(ids, most, block_hashes, windows)
            counts = [min(n - match.n_full, self._most_held(window)) for window in windows]
            needed = sum(counts) + len(match.in_host)
            if needed <= self.pool.n_free_beside(match):
                return self._with_room(match, needed), counts
        return None

    def most_blocks(self, n_tokens: int, *, all_read: bool = False) -> int:
        """Return how many blocks `borrow` takes at most for `n_tokens` tokens."""
        n = blocks_for(n_tokens)
        if all_read:
            return n * len(self.windows)
        return sum(min(n, self._most_held(window)) for window in self.windows)

    def give_back(self, borrowed: BorrowedBlocks, n_computed: int = 0) -> None:
        """Give back borrowed blocks. `n_computed`: leading tokens whose keys and values are now in
        place; they enter the prefix cache."""
        assert borrowed is self._borrowed, "this was returned before"
        self._borrowed = None
        for group, window in enumerate(borrowed.windows):
            first = 0 if window is None else max(0, n_computed + 1 - window) // BLOCK_TOKENS
            table = BlockTable(borrowed.tables[group], first)
            self.pool.insert(borrowed.ids, n_computed, table, borrowed.block_hashes, group)
            self.pool.free(borrowed.owned[group])

    def state(self) -> KvState:
        self._enter_running()
        pool = self.pool
        held = [pool.cached(block) for block in range(pool.n_blocks)]
        first = [-1 if h is None else h.first for h in held]
        groups = [pool.group_of(block) for block in range(pool.n_blocks)]
        for sequence in self._running:
            for group, table in enumerate(sequence.tables):
                for i, block in enumerate(table.owned, table.n_freed):
                    first[block], groups[block] = i * BLOCK_TOKENS, group
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
            groups=tuple(-1 if g is None else g for g in groups)
            if frees_blocks(self.windows)
            else (),
        )

    # ---- inside -----------------------------------------------------------------------------

    def _match_prefix(self, sequence: Sequence) -> PrefixMatches:
        """Match all tokens to prefill but the last, whose logits are needed."""
        if not self.reuses_prefixes:
            return self._match_most(sequence, 0)
        self._enter_running()
        return self._match_most(sequence, min(sequence.prefill.n_known - 1, sequence.context))

    def _match_most(self, sequence: Sequence, most: int) -> PrefixMatches:
        windows = self._windows_of(sequence)
        return self.pool.match_prefix(sequence.ids, most, sequence.block_hashes, windows)

    def _windows_of(self, sequence: Sequence) -> tuple[int | None, ...]:
        """Return the windows behind which a sequence needs nothing any more."""
        if sequence.context_shift is None:
            return self.windows
        return tuple(sequence.context_shift.window_of(window) for window in self.windows)

    def _attach(self, sequence: Sequence, match: PrefixMatches) -> None:
        """Make the sequence begin after its cached prefix, or after as much of it as there are
        blocks free for what must be copied."""
        sequence.windows = self.windows
        match = self._loadable(sequence, match)
        match = self._with_room(match, len(match.in_host) + len(match.sources))
        n_parts = blocks_for(match.n_tokens) - match.n_full
        sequence.tables = self._take(match, [n_parts] * len(self.windows))
        if not sequence.n_preemptions:
            self.n_reused += match.n_tokens - sequence.prefill.n_matched
            self.n_loaded += match.n_full_in_host * BLOCK_TOKENS
        sequence.prefill.reuse_prefix(match.n_tokens, len(match.blocks) + len(match.in_host))
        self._note_changed(sequence)

    def _loadable(self, sequence: Sequence, match: PrefixMatches) -> PrefixMatches:
        """Return the longest beginning of a match that the device has room for: each of its blocks
        in host memory needs a free one."""
        while (lacking := len(match.in_host) - self.pool.n_free_beside(match)) > 0:
            most = (match.n_full - -(-lacking // len(self.windows))) * BLOCK_TOKENS
            match = self._match_most(sequence, most)
        return match

    def _with_room(self, match: PrefixMatches, n: int) -> PrefixMatches:
        """Return a match without the blocks to copy from, if they leave no room for `n` others. The
        only one may itself be taken for the copy."""
        n_free, sources = self.pool.n_free_beside(match), tuple(match.sources)
        if len(sources) > 1:
            n_free -= self.pool.n_unreferenced(sources)
        return match if n <= n_free else match.without_part()

    def _take(self, match: PrefixMatches, counts: list[int]) -> list[BlockTable]:
        """Return a table of each group: the blocks of a match and as many free ones as `counts`
        says, of which there must be enough. After the copies the match is in place."""
        tables = []
        sources = match.sources if len(match.sources) > 1 else []  # none is taken before its copy
        self.pool.hold(sources)
        attached = self.pool.attach(match)
        for group, owned, n in zip(match.groups, attached, counts, strict=True):
            taken = self.pool.allocate(n)
            assert taken is not None, "there are fewer free blocks than were counted"
            # The last free block may be the source itself; then nothing is to be copied.
            if group.source is not None and group.source != taken[0]:
                self._n_copies += 1
                self.copies.append(BlockCopy(group.source, taken[0]))
            tables.append(BlockTable.of(group.n_freed, owned + taken))
        self.pool.free(sources)
        return tables

    def _note_changed(self, sequence: Sequence) -> None:
        if sequence not in self.changed_tables:
            self.changed_tables.append(sequence)

    def _enter_running(self) -> None:
        """Enter what runs computed since the last call into the prefix cache. Not done token by
        token, so that it costs a step nothing."""
        for sequence in self._running:
            self._enter(sequence)

    def _enter(self, sequence: Sequence) -> None:
        for group in range(len(sequence.tables)):
            self._enter_table(sequence, group)

    def _enter_table(self, sequence: Sequence, group: int) -> None:
        if not sequence.n_shifted:  # else its blocks hold no text that another could begin with
            self.pool.insert(
                sequence.ids,
                sequence.n_computed,
                sequence.tables[group],
                sequence.block_hashes,
                group,
            )

    def _most_at_once(self, sequence: Sequence) -> int:
        """Return the blocks that a sequence needs for the rest of its prompt and the next token."""
        n = blocks_for(min(sequence.context, sequence.prefill.n_known + 1))
        return sum(min(n, self._most_held(window)) for window in self._windows_of(sequence))

    def _most_held(self, window: int | None) -> int:
        """Return the most blocks of one text that a group holds at once."""
        return ALL if window is None else blocks_for(window + self._max_rows) + 1

    def _soon_needed(self, sequence: Sequence) -> int:
        """Return the blocks that a running sequence needs for the rest of its prompt, at least the
        next one it writes to in each table."""
        return max(len(self.windows), self._most_at_once(sequence) - len(sequence.owned_blocks))


@dataclass(frozen=True, slots=True)
class _TableShift:
    """Moves in one table when a context shifts, by `gpu.kv.context_shift.context_shift_moves`.
    `unread`: blocks of the old table that nothing moves out of; `n_unread`: blocks of the new table
    that no row reads."""

    old: list[int]
    steps: list[BlockMoves]
    unread: list[int]
    n_unread: int

    @classmethod
    def of(cls, context_shift: ContextShift, table: BlockTable, window: int | None) -> _TableShift:
        n_unread = context_shift.n_unread(window)
        steps, unread = context_shift_moves(context_shift, table.n_freed, n_unread)
        return cls(table.blocks, steps, [table.blocks[i] for i in unread], n_unread)


def _moves(chunks: list[ReusableChunk], blocks: list[int], group: int) -> Iterator[TokenMove]:
    """Yield the moves that bring chunks to their positions in a group's table of `blocks`."""
    for chunk in chunks:
        places = (chunk.places, *chunk.elsewhere)[group]
        for position, place in enumerate(places, chunk.first):
            block, cell = divmod(position, BLOCK_TOKENS)
            yield TokenMove(place, blocks[block] * BLOCK_TOKENS + cell, chunk.shift)
