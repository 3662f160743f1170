"""Continuous batching with chunked prefill: chooses the rows of the next step.

Sequences are in order of priority, then of arrival. They wait until a slot is free and the KV cache
has room for their prompt; tokens in the prefix cache are not computed again
(`gpu.engine.kv_manager`).

A step takes one row of each decoding sequence, then chunks of prompts in order, as many rows as
`gpu.engine.chunk_size` allows (Agrawal et al. 2023, "Sarathi"). If more sequences decode than a
step can sample, the least recently served go first; a prompt about to sample its first token is
ordered by the time it got its slot. With pipeline stages a step is one micro-batch: of n stages,
it takes 1/n of the running sequences.

Blocks for new tokens are allocated when they are needed. If none is free, the last running sequence
in order is preempted: it gives its blocks and slot back, waits, and is later prefilled with its
text so far, of which the prefix cache may still have most. Its ids are those without preemption.
If the last in order itself needs a block, it waits and keeps those that it has. So the first in
order always goes on, and every sequence ends.

A paused run (`Sequence.paused`) never blocks others. When blocks are short, also for a question, it
loses its own first, and it loses its slot if another run waits for one. It gets both back when no
unpaused run waits, or in its turn after it is resumed. Host logic only; the engine submits the
steps.
"""

from __future__ import annotations

import secrets
import time
from bisect import insort
from collections.abc import Callable

from gpu.engine.chunk_size import ChunkSizer
from gpu.engine.kv_manager import BorrowedBlocks, KvManager
from gpu.engine.sequence import Sequence
from gpu.engine.step_builder import Scheduled, StepBuilder
from gpu.engine.step_log import StepLog
from gpu.info import EngineStats, RunnerLimits
from gpu.kv.blocks import BLOCK_TOKENS
from gpu.kv.prefix_cache import BlockHashes
from gpu.kv.state import KvState
from gpu.load_options import MAX_PREFILL_SLOWDOWN
from gpu.speculative.draft_length import Cost
from gpu.speculative.drafting import Drafting, ModelDrafting

PROMPT_SHARE = 8
"""If more sequences decode than a step has rows, one row in this many is left for a prompt."""
FIRST_RUN = 1 << 31
"""Runs are numbered from a random number below this, so that those of two engines differ."""


class Scheduler:
    """Scheduler of one engine.

    prefix_cache          False: every prompt is computed whole
    max_prefill_slowdown  see `gpu.engine.chunk_size`
    make_drafting         returns the speculative decoding of a new sequence, given the cost of
                          steps; None: no speculative decoding
    """

    def __init__(
        self,
        limits: RunnerLimits,
        *,
        prefix_cache: bool = True,
        max_prefill_slowdown: float = MAX_PREFILL_SLOWDOWN,
        make_drafting: Callable[[Cost], Drafting] | None = None,
    ) -> None:
        self.limits = limits
        self.kv = KvManager(limits, prefix_cache=prefix_cache)
        self._make_drafting = make_drafting
        self.waiting: list[Sequence] = []
        self.active: list[Sequence] = []
        self._free_slots = list(range(limits.slots - 1, -1, -1))
        self._lacks_blocks: Sequence | None = None  # first of `waiting`, until blocks may be free
        self.n_preemptions = 0
        self._n_added = secrets.randbelow(FIRST_RUN)
        self.steps = StepLog()
        self._n_steps = 0
        self._chunks = ChunkSizer(max_prefill_slowdown)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence, and send its place in the queue."""
        self._n_added += 1
        sequence.order = (sequence.order[0], self._n_added)
        if self._make_drafting is not None and sequence.text.grammar is None:
            sequence.decoding.drafting = self._make_drafting(self.decode_cost)
        insort(self.waiting, sequence, key=_order)
        sequence.accepted(self._place(sorted(self.waiting, key=_turn).index(sequence) + 1))
        self._tell_places()

    def admit(self) -> list[Sequence]:
        """Give slots to waiting sequences, in order; return those that start now."""
        started = []
        if (paused := self._to_give_way) is not None:
            self._preempt(paused, gives_way=True)
        while (sequence := self._first_waiting) is not None and sequence.interventions.ready:
            sequence.resume()
            if not self.kv.admit(sequence):
                self._lacks_blocks = sequence
                break
            self.waiting.remove(sequence)
            sequence.slot = self._free_slots.pop()
            sequence.served = self._n_steps
            self.active.append(sequence)
            sequence.apply_scheduled_updates()
            started.append(sequence)
        if started:
            self._tell_places()
        return started

    @property
    def has_work(self) -> bool:
        """Return whether there is something to do: a step to make, or a sequence that may start."""
        if self._first_waiting is not None or self._to_give_way is not None:
            return True
        return any(s.prefilling or s.wants_decode for s in self.active if not s.finished)

    def seconds_until_due(self) -> float | None:
        """Return how long it is until a sequence is due by its pace; None if none waits so."""
        times = [sequence.due_at for sequence in self.active if sequence.due_at is not None]
        return max(0.0, min(times) - time.perf_counter()) if times else None

    @property
    def to_resolve(self) -> Sequence | None:
        """Return the sequence that could start now if its interventions were resolved."""
        first = self._first_waiting
        return None if first is None or first.interventions.ready else first

    def wait_for_blocks(self, sequence: Sequence) -> None:
        """Make a sequence that could start wait until blocks may be free."""
        self._lacks_blocks = sequence

    def retry_waiting(self) -> None:
        """Try to start the first that waits again, also if it lacked blocks: a question or a pause
        that ended may have left some."""
        self._lacks_blocks = None

    def next_step(self, *, prefill: bool = True) -> Scheduled | None:
        """Return a step of the rows that can run now, or None. `prefill` False: only decoding
        sequences."""
        prompts = self._next_prompts() if prefill else []
        decoding = self._next_decoding(prompts)
        shares = self._share_rows(prompts, decoding)
        drafts = {} if shares else self._count_drafts(decoding)
        self._cover_all(decoding, shares, drafts)
        building = StepBuilder()
        for sequence in decoding:
            building.decode(sequence, drafts.get(sequence, 0), len(decoding) - 1)
        for sequence, n in shares.items():
            building.prefill(sequence, n)
        scheduled = building.scheduled()
        if scheduled is None:
            return None
        self._n_steps += 1
        self.steps.submitted(scheduled, self.waiting)
        for sequence in scheduled.samplers:
            sequence.served = self._n_steps
        self._apply_scheduled_updates(scheduled.samplers)
        return scheduled

    def to_draft(self) -> dict[Sequence, int]:
        """Return the sequences for which the draft model is to propose tokens now, and how many.
        None while a prompt is next: steps with chunks verify no drafts."""
        if any(s.prefilling for s in self.active if not s.finished):
            return {}
        decoding = self._next_decoding([])
        left = self._draft_rows(decoding)
        counts: dict[Sequence, int] = {}
        for sequence in decoding:
            drafting = sequence.decoding.drafting
            if not isinstance(drafting, ModelDrafting) or drafting.has_proposed:
                continue
            n_beside = len(decoding) - 1 + sum(counts.values())
            if n := drafting.to_draft(min(left, sequence.draft_room), n_beside):
                counts[sequence] = n
                left -= n
        return counts

    def learn(self, scheduled: Scheduled, ms: float) -> None:
        """Record that a step took `ms`, which sizes the next chunks."""
        self._chunks.learn(scheduled.step, scheduled.n_prefill, ms)

    def decode_cost(self, n: int) -> float | None:
        """Return the expected milliseconds of a step that decodes `n` rows; None if unknown."""
        return self._chunks.decode_cost(n)

    def release(self, sequence: Sequence) -> None:
        """Free the slot and blocks of a finished sequence. Its steps still in flight run before
        anything that reuses them, because the device keeps the order of submission."""
        self._lacks_blocks = None
        if sequence in self.active:
            self.active.remove(sequence)
            self._free_slots.append(sequence.slot)
            self.kv.release(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
            self._tell_places()

    def borrow(
        self,
        ids: list[int],
        first: int | None = None,
        block_hashes: BlockHashes | None = None,
        *,
        all_read: bool = False,
    ) -> BorrowedBlocks | None:
        """Borrow the inspection slot and blocks for `ids`, with their cached beginning in place;
        None if too few blocks are free without those of runs that are not paused. The borrower
        computes the rows from `n_reused` on; rows from `first` on (the last alone if None) are
        never cached ones. To be given back before the next step is made. `block_hashes`: those of
        `ids`, if interventions acted on them. `all_read`: rows may read keys that are behind the
        window of their layers."""
        most = len(ids) - 1 if first is None else first
        hashes, slot = block_hashes or BlockHashes(), self.limits.inspection_slot
        while (borrowed := self.kv.borrow(slot, ids, most, hashes, all_read=all_read)) is None:
            if (paused := max(self._paused, key=_order, default=None)) is None:
                return None
            self._preempt(paused)
        return borrowed

    @property
    def n_free_blocks(self) -> int:
        """Return the KV blocks that no run has."""
        return self.kv.n_free

    def give_back(self, borrowed: BorrowedBlocks, n_computed: int = 0) -> None:
        """Give back borrowed blocks; their first `n_computed` tokens enter the prefix cache."""
        self.kv.give_back(borrowed, n_computed)

    def kv_state(self) -> KvState:
        """Return what every KV block holds now, and how much was reused so far."""
        return self.kv.state()

    def stats(self) -> EngineStats:
        """Return what runs and waits now; from any thread."""
        kv, pool, n_blocks = self.kv, self.kv.pool, self.limits.n_blocks
        running, waiting = ([s.paused for s in list(some)] for some in (self.active, self.waiting))
        return EngineStats(
            n_running=running.count(False),
            n_waiting=waiting.count(False),
            used_blocks=n_blocks - kv.n_free,
            n_blocks=n_blocks,
            prompt_tokens=kv.n_prompt,
            reused_tokens=kv.n_reused,
            n_preemptions=self.n_preemptions,
            loaded_tokens=kv.n_loaded,
            used_host_blocks=len(pool.host),
            n_host_blocks=pool.host.n_places,
            stored_bytes=pool.n_stored * self.limits.block_bytes,
            loaded_bytes=pool.n_loaded * self.limits.block_bytes,
            n_paused=running.count(True) + waiting.count(True),
        )

    @property
    def _first_waiting(self) -> Sequence | None:
        """Return the first waiting sequence if it can start: a slot is free, all samples that it
        submitted were read, and there were enough blocks when it was last tried."""
        first = self._next_waiting
        if first is None or not self._free_slots:
            return None
        hopeless = first is self._lacks_blocks and (first.paused or bool(self.active))
        return first if first.decoding.settled and not hopeless else None

    @property
    def _next_waiting(self) -> Sequence | None:
        """Return the first waiting sequence in order that is not paused, else the first."""
        return min(self.waiting, key=_turn, default=None)

    @property
    def _to_give_way(self) -> Sequence | None:
        """Return the last paused sequence in order if another waits for a slot or blocks."""
        first = self._next_waiting
        if first is None or first.paused:
            return None
        if self._free_slots and first is not self._lacks_blocks:
            return None
        return max(self._paused, key=_order, default=None)

    @property
    def _paused(self) -> list[Sequence]:
        """Return the paused sequences that have a slot."""
        return [s for s in self.active if s.paused and not s.finished]

    def _place(self, n: int) -> int:
        """Return how many sequences must end for the n-th waiting one (from 1) to start."""
        lacks_blocks = self._lacks_blocks is not None and self._lacks_blocks in self.waiting
        return n if lacks_blocks else max(0, n - len(self._free_slots) - len(self._paused))

    def _tell_places(self) -> None:
        for n, sequence in enumerate(sorted(self.waiting, key=_turn), 1):
            sequence.text.events.moved_to(self._place(n))

    def _apply_scheduled_updates(self, samplers: tuple[Sequence, ...]) -> None:
        """Apply due updates now, not when the next token is wanted: without a change there may be
        no next one."""
        for sequence in samplers:
            sequence.apply_scheduled_updates()
            if sequence.finished:
                self.release(sequence)

    def _next_prompts(self) -> list[Sequence]:
        """Return the sequences whose prompt is not in the cache yet, in order."""
        return sorted((s for s in self.active if s.prefilling and not s.finished), key=_order)

    def _next_decoding(self, prompts: list[Sequence]) -> list[Sequence]:
        """Return the sequences that get a row of the next step, least recently served first. Some
        rows are left for the first prompt, if there is one."""
        by_service = sorted((s for s in self.active if s.wants_decode), key=lambda s: s.served)
        decoding = self._micro_batch(by_service)[: self.limits.max_samples]
        most = self._most_rows(decoding, prompts)
        if prompts:
            most -= max(1, most // PROMPT_SHARE)
        return decoding[:most]

    def _micro_batch(self, sequences: list[Sequence]) -> list[Sequence]:
        """Return those of `sequences` that take part in the next step: all, or 1/n of those that
        decode if the model has n pipeline stages, so that all stages work at the same time. A
        sequence whose last sample is in flight has no token to feed: another device has it."""
        n_stages = self.limits.n_stages
        if n_stages == 1:
            return sequences
        n_writing = sum(not (s.prefilling or s.finished) for s in self.active)
        return [s for s in sequences if s.decoding.settled][: -(-n_writing // n_stages)]

    def _share_rows(self, prompts: list[Sequence], decoding: list[Sequence]) -> dict[Sequence, int]:
        """Return how many rows each prompt gets beside one row for each of `decoding`. A prompt
        whose last token is next may take the place of the last writer."""
        if not prompts:
            return {}
        left = self._most_rows(decoding, prompts) - len(decoding)
        left = self.chunk_rows(prompts, decoding, left)
        capture = prompts[0].capture or any(s.capture for s in decoding)
        n_samples, shares = len(decoding), dict[Sequence, int]()
        for prompt in prompts:
            if prompt.capture and not capture:
                continue
            if prompt.prefill.is_unread:
                self.kv.match_again(prompt)
            if self._waits_for_prefix(prompt, shares):
                continue
            n = self._piece_rows(prompt, left)
            if n == prompt.prefill.n_left and n_samples < self.limits.max_samples:
                n_samples += 1
            elif n == prompt.prefill.n_left and decoding and prompt.served <= decoding[-1].served:
                decoding.pop()
            elif n == prompt.prefill.n_left:
                n -= 1  # the last token waits for a step that can sample it
            if n:
                shares[prompt] = n
                left -= n
            if left <= 0:
                break
        return shares

    def chunk_rows(self, prompts: list[Sequence], decoding: list[Sequence], most: int) -> int:
        """Return how many rows the chunks of `prompts` have together beside `decoding`."""
        if decoding and _arrived_together(prompts, decoding):
            n_left = sum(prompt.prefill.n_left for prompt in prompts)
            if (n := self._chunks.rows_together(n_left, most)) is not None:
                return n
        return self._chunks.rows(len(decoding), len(prompts), most)

    def _piece_rows(self, prompt: Sequence, most: int) -> int:
        """Return the rows of the next chunk of `prompt`."""
        prefill = prompt.prefill
        if prefill.is_unread:
            self.kv.reuse_chunks(prompt)
        first = prefill.n_done
        n = min(prefill.next_found - first, prompt.n_until_full, most)
        return prompt.interventions.schedule.next_change(first, first + n) - first

    def _waits_for_prefix(self, prompt: Sequence, shares: dict[Sequence, int]) -> bool:
        """Return whether a prompt of this step computes the next block of `prompt`, so that it can
        be found instead. For less than a block nobody waits."""
        end = prompt.prefill.n_done + BLOCK_TOKENS
        return self.kv.reuses_prefixes and any(
            end < min(prompt.prefill.n_known, other.prefill.n_known)
            and self.kv.begin_alike(prompt, other, end)
            for other in shares
        )

    def _count_drafts(self, decoding: list[Sequence]) -> dict[Sequence, int]:
        """Return how many drafts each of `decoding` verifies, of those that verify any."""
        counts: dict[Sequence, int] = {}
        left = self._draft_rows(decoding)
        for sequence in decoding:
            n_beside = len(decoding) - 1 + sum(counts.values())
            if n := sequence.drafts_wanted(left, n_beside):
                counts[sequence] = n
                left -= n
        return counts

    def _draft_rows(self, decoding: list[Sequence]) -> int:
        """Return how many drafts a step has room for."""
        return min(self._most_rows(decoding, []), self.limits.max_samples) - len(decoding)

    def _most_rows(self, decoding: list[Sequence], prompts: list[Sequence]) -> int:
        capture = any(s.capture for s in (*decoding, *prompts[:1]))
        return self.limits.max_captured_rows if capture else self.limits.max_rows

    def _cover_all(
        self, decoding: list[Sequence], shares: dict[Sequence, int], drafts: dict[Sequence, int]
    ) -> None:
        """Give all rows blocks; leave out those that have none. A sequence may preempt those after
        it in order, but not for its drafts. A paused one is preempted for any other, and if it
        lacks blocks itself."""
        for sequence in sorted({*decoding, *shares}, key=_turn):
            if sequence not in self.active:
                continue  # preempted meanwhile
            if sequence in shares:
                shares[sequence] = self._covered_rows(sequence, shares[sequence])
                if not shares[sequence]:
                    self._preempt_paused(sequence)
            elif not self._shift_context(sequence) or not self._cover(
                sequence, sequence.next_position
            ):
                decoding.remove(sequence)
                self._preempt_paused(sequence)
            elif n := drafts.get(sequence):
                at = sequence.next_position
                if not self.kv.cover(sequence, at + n, 1 + n):
                    del drafts[sequence]
        decoding[:] = [s for s in decoding if s in self.active]
        for sequence, n in list(shares.items()):
            if sequence not in self.active or not n:
                del shares[sequence]

    def _covered_rows(self, prompt: Sequence, n: int) -> int:
        """Return how many of the next `n` rows of `prompt` have blocks now."""
        if not self._shift_context(prompt):
            return 0
        first = prompt.next_position
        if not self._cover(prompt, first + n - 1, n):
            n = min(n, self.kv.room(prompt) - first)
            if n > 0:
                self.kv.cover(prompt, first + n - 1, n)
        return max(0, n)

    def _shift_context(self, sequence: Sequence) -> bool:
        """Have the oldest tokens of a full context leave it, preempting others after it in order if
        blocks are needed; return False if there are too few."""
        while sequence.is_full and not self.kv.shift_context(sequence):
            if not self._preempt_last(sequence):
                return False
        return True

    def _cover(self, sequence: Sequence, position: int, n_rows: int = 1) -> bool:
        """Give the next rows of a sequence blocks, preempting others after it in order; return
        False if there are too few."""
        while not self.kv.cover(sequence, position, n_rows):
            if not self._preempt_last(sequence):
                return False
        return True

    def _preempt_last(self, sequence: Sequence) -> bool:
        """Preempt the last in order for `sequence`; return False if that is itself."""
        last = max(self.active, key=_turn)
        if last is sequence:
            return False
        self._preempt(last)
        return True

    def _preempt_paused(self, sequence: Sequence) -> None:
        """Preempt a sequence that lacks blocks if it is paused: it need not have those it has."""
        if sequence.paused and sequence in self.active:
            self._preempt(sequence)

    def _preempt(self, sequence: Sequence, *, gives_way: bool = False) -> None:
        """Take blocks and slot from a sequence. It is the next to start once a run has ended,
        unless it gives way to one that waits."""
        self.n_preemptions += 1
        self.active.remove(sequence)
        self._free_slots.append(sequence.slot)
        self.kv.release(sequence)
        sequence.preempt()
        insort(self.waiting, sequence, key=_order)
        self._lacks_blocks = None if gives_way else self._next_waiting
        self._tell_places()


def _arrived_together(prompts: list[Sequence], decoding: list[Sequence]) -> bool:
    """Return whether all prompts arrived before any of `decoding` had its first token."""
    latest = max(prompt.text.events.clock.asked for prompt in prompts)
    firsts = (sequence.text.events.clock.first for sequence in decoding)
    before = all(first is None or latest < first for first in firsts)
    return before and not any(prompt.n_preemptions for prompt in prompts)


def _order(sequence: Sequence) -> tuple[int, int]:
    return sequence.order


def _turn(sequence: Sequence) -> tuple[bool, tuple[int, int]]:
    """Return the place of a sequence in order, paused ones after all others."""
    return sequence.paused, sequence.order
