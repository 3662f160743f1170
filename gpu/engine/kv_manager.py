"""Assignment of KV blocks to runs: cached blocks of the prompt's prefix, free ones for the rest.

A run starts only if the cache can hold all it may write, so it is never preempted. The blocks that
it may still need are promised to it. Blocks without an owner count as free even while they are in
the prefix cache. A run that shares a cached block is promised one block less. Host logic only.

The device must get `copies`, then the tables of `changed_tables`, before the next step. It runs
submissions in order, so a block is reused only after all steps that used it before, and tokens can
be matched as soon as their step is submitted. Tokens past a stop may be in a block too, but only
tokens that a sequence accepted enter the prefix cache; the others are overwritten before they are
read.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpu.engine.sequence import Sequence
from gpu.errors import InvalidRequest
from gpu.kv.block_pool import BlockPool
from gpu.kv.blocks import BLOCK_TOKENS, blocks_for
from gpu.kv.prefix_cache import BlockHashes, PrefixMatch
from gpu.kv.state import KvState

BlockCopy = tuple[int, int]
"""(source, destination)"""

NO_MATCH = PrefixMatch()


@dataclass(frozen=True, slots=True)
class BorrowedBlocks:
    """Blocks for `ids` outside of any run, in order, for the table of `slot`. After `copies` the
    first `n_reused` tokens are in place; the rows of the others may be computed."""

    slot: int
    ids: list[int]
    blocks: list[int]
    n_reused: int
    copies: tuple[BlockCopy, ...]
    block_hashes: BlockHashes


class KvManager:
    """Blocks of all runs. `prefix_cache` False: runs reuse no prefix; borrowed blocks still do."""

    def __init__(self, n_blocks: int, *, prefix_cache: bool = True) -> None:
        self.pool = BlockPool(n_blocks)
        self.copies: list[BlockCopy] = []
        """Blocks to copy on the device, in order, before the next step."""
        self.changed_tables: list[Sequence] = []
        """Sequences whose table changed since it was last written."""
        self._prefix_cache = prefix_cache
        self._most: dict[Sequence, int] = {}  # blocks that each running sequence may come to own
        self._borrowed: BorrowedBlocks | None = None
        self._n_prompt = self._n_reused = self._n_copies = 0

    @property
    def n_free(self) -> int:
        """Number of blocks without an owner that are not promised."""
        return self.pool.n_free - self._promised()

    def admit(self, sequence: Sequence) -> bool:
        """Give a sequence its cached prefix and promise it all other blocks; return False if too
        few are free."""
        match = self._match_prompt(sequence)
        free = self.pool.n_free - self.pool.n_unreferenced(match.blocks) - self._promised()
        if sequence.max_blocks - len(match.blocks) > free:
            return False
        self._most[sequence] = sequence.max_blocks
        self._n_prompt += len(sequence.prompt)
        self._attach(sequence, match)
        return True

    def match_again(self, sequence: Sequence) -> None:
        """Match the prefix again before the first token of a prompt is computed: a prompt that
        begins the same may have entered the cache meanwhile."""
        match = self._match_prompt(sequence)
        if match.n_tokens > sequence.n_reused:
            self.pool.free(sequence.blocks)
            self._attach(sequence, match)

    def cover(self, sequence: Sequence, position: int) -> None:
        """Allocate promised blocks until `position` has one."""
        missing = blocks_for(position + 1) - len(sequence.blocks)
        if missing > 0:
            sequence.blocks += self._take(missing)
            self._note_changed(sequence)

    def release(self, sequence: Sequence) -> None:
        """Free the blocks of a finished sequence; its tokens stay cached until the blocks are
        needed."""
        self._enter(sequence)
        self.pool.free(sequence.blocks)
        sequence.blocks = []
        del self._most[sequence]

    def check_max_tokens(self, sequence: Sequence, max_tokens: int) -> None:
        """Promise a running sequence the blocks for `max_tokens`. Raises InvalidRequest if too few
        are free."""
        wanted = blocks_for(min(sequence.context, len(sequence.prompt) + max_tokens))
        own = len(sequence.blocks)
        others = self._promised() - (self._most[sequence] - own)
        room = own + self.pool.n_free - others
        if wanted > room:
            raise InvalidRequest(
                f"max_tokens {max_tokens} needs {wanted} KV blocks, but other runs leave {room} of "
                f"{self.pool.n_blocks}; ask for less, or wait for them to end",
                "max_tokens",
            )
        self._most[sequence] = max(self._most[sequence], wanted)

    # ---- outside of runs --------------------------------------------------------------------

    def borrow(
        self, slot: int, ids: list[int], first: int, block_hashes: BlockHashes
    ) -> BorrowedBlocks | None:
        """Return blocks for `ids`, those before `first` from the cache if possible; None if too few
        are free. They may be promised to runs, so they must be given back before the next step."""
        assert self._borrowed is None, "return what was borrowed before"
        assert not self.copies, "carry out the copies of the runs first"
        self._enter_running()
        match = self.pool.match_prefix(ids, first, block_hashes)
        self.pool.touch(match)
        taken = self.pool.allocate(blocks_for(len(ids)) - len(match.blocks))
        if taken is None:
            self.pool.free(list(match.blocks))
            return None
        copies = self._copy_of(match, taken[0]) if taken else ()
        blocks = [*match.blocks, *taken]
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
        for sequence in self._most:
            for i, block in enumerate(sequence.blocks):
                first[block] = i * BLOCK_TOKENS
        return KvState(
            BLOCK_TOKENS,
            owners=tuple(pool.ref_counts),
            first=tuple(first),
            n_found=tuple(0 if h is None else len(h.ids) for h in held),
            used=tuple(pool.last_used),
            prompt_tokens=self._n_prompt,
            reused_tokens=self._n_reused,
            copies=self._n_copies,
            evictions=pool.n_evicted,
        )

    # ---- inside -----------------------------------------------------------------------------

    def _promised(self) -> int:
        """Return how many blocks running sequences may still take."""
        return sum(most - len(sequence.blocks) for sequence, most in self._most.items())

    def _take(self, n: int) -> list[int]:
        assert self._borrowed is None, "return what was borrowed before the next step"
        taken = self.pool.allocate(n)
        assert taken is not None, "promised blocks are missing"
        return taken

    def _match_prompt(self, sequence: Sequence) -> PrefixMatch:
        """Match all but the last token, whose logits are needed."""
        if not self._prefix_cache:
            return NO_MATCH
        self._enter_running()
        return self.pool.match_prefix(
            sequence.prompt, len(sequence.prompt) - 1, sequence.block_hashes
        )

    def _attach(self, sequence: Sequence, match: PrefixMatch) -> None:
        """Make the sequence begin after its cached prefix."""
        self.pool.touch(match)
        sequence.blocks = list(match.blocks)
        if match.source is not None:
            sequence.blocks += self._take(1)
            self.copies += self._copy_of(match, sequence.blocks[-1])
        self._n_reused += match.n_tokens - sequence.n_reused
        sequence.reuse_prefix(match.n_tokens)
        self._note_changed(sequence)

    def _copy_of(self, match: PrefixMatch, to: int) -> tuple[BlockCopy, ...]:
        """Return the copy of a partly matched block; none if the block taken for it is the source
        itself, the last free one."""
        if match.source is None or match.source == to:
            return ()
        self._n_copies += 1
        return ((match.source, to),)

    def _note_changed(self, sequence: Sequence) -> None:
        if sequence not in self.changed_tables:
            self.changed_tables.append(sequence)

    def _enter_running(self) -> None:
        """Enter what runs computed since the last call into the prefix cache. Not done token by
        token, so that it costs a step nothing."""
        for sequence in self._most:
            self._enter(sequence)

    def _enter(self, sequence: Sequence) -> None:
        self.pool.insert(sequence.ids, sequence.n_computed, sequence.blocks, sequence.block_hashes)
