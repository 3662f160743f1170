"""State of one run in the engine: what was submitted to the device, and what was read back.

The engine submits ahead of what it reads: `n_submitted` samples are in flight or done, `n_written`
were read. Samples past a stop are discarded.

A paused run (`gpu.pace`) holds the result of its next step, the preview, until the token
may be written. A change of its settings drops the preview, and the step runs again: the same row
writes the same place in the KV cache, and the draw depends on seed and index alone. Nothing on the
host has moved until then, and of the text on the device `text_is_stale`.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

import msgspec

from gpu.engine.pending_updates import PendingUpdates
from gpu.engine.run_events import FoundPrefix, RowResult, RunEvents
from gpu.events import Done, Draft, Event, MovedChunk, Reason, Updated
from gpu.interventions.messages import NONE_ENCODED
from gpu.interventions.resolved import ResolvedInterventions, RunInterventions
from gpu.kv.block_table import BlockTable
from gpu.kv.blocks import BLOCK_TOKENS, blocks_for, frees_blocks, text_blocks
from gpu.kv.cache_reuse import ReusableChunk
from gpu.kv.context_shift import ContextShift
from gpu.kv.prefix_cache import BlockHashes
from gpu.pace import PaceChange, RunPace
from gpu.request import Request
from gpu.sampling_params import SamplingParams
from gpu.speculative.drafting import Drafting
from gpu.step import FROM_GPU, NonFinite, Row, Sample, Sampled, StepResult
from gpu.text.grammar_matcher import GrammarMatcher
from gpu.text.token_table import TokenizerLike

SEED_BITS = 32
"""Bits of a seed that the engine draws: every JSON reader keeps such a number exact."""

NOT_A_NUMBER = (
    "the model's output is not a number: its activations or weights are too large for how they are "
    "stored; load it with dtype f32, and if that does not help, check the weights"
)


class Repeated(NamedTuple):
    """Result of a second run of the rows of one sequence, in order. `rows`: those of its samples.
    `not_finite`: where a number was not finite there, if it is known."""

    result: StepResult
    rows: list[int]
    not_finite: NonFinite | None


def _not_a_number(place: NonFinite | None) -> str:
    """Return the error of a run whose output is not a number, first at `place` if it is known."""
    if place is None:
        return NOT_A_NUMBER
    return f"{NOT_A_NUMBER}. First wrong, in two runs of the step: {place}"


def _seeded(params: SamplingParams) -> SamplingParams:
    """Return `params` with a seed, which is drawn if they have none."""
    if params.seed is not None:
        return params
    return msgspec.structs.replace(params, seed=secrets.randbits(SEED_BITS))


def _no_interventions(request: Request, n_prompt: int) -> RunInterventions:
    """Return the interventions of a request that has none."""
    return RunInterventions((NONE_ENCODED, *[None] * len(request.updates)), n_prompt)


class Sequence:
    """State of one run. All methods are called by the engine's thread."""

    def __init__(
        self,
        request: Request,
        tokenizer: TokenizerLike,
        eos_ids: tuple[int, ...],
        context: int,
        *,
        interventions: RunInterventions | None = None,
        grammar: GrammarMatcher | None = None,
        cache_reuse: int = 0,
        on_event: Callable[[Event], None] = lambda event: None,
    ) -> None:
        """`cache_reuse`: that of `request`, or of the engine if it has none. `interventions`: those
        of `request`, validated; None: it has none. `grammar`: that of `request`, which has read
        what it has to of the prompt."""
        params, n_written = _seeded(request.params), request.n_written
        self.prompt = request.ids[: len(request.ids) - n_written]
        self.ids = list(request.ids)  # the prompt and every token read since
        self.interventions = interventions or _no_interventions(request, len(self.prompt))
        digest_at = self.interventions.schedule.digest_at
        self.block_hashes = BlockHashes(digest_at, request.cache_salt)  # of ids
        self.params = params
        self.capture = request.capture
        self.context = context
        n_keep = request.n_keep
        self.context_shift = None if n_keep is None else ContextShift(context, n_keep)
        self.n_shifted = 0  # tokens that left the cache, so that the next are before their index
        self.slot = -1
        self.order = (request.priority, 0)  # sequences are served by it; the scheduler numbers them
        self.n_preemptions = 0
        self.served = 0  # the scheduler's step that sampled it last, or after which it got its slot
        self.windows: tuple[int | None, ...] = (None,)  # of each group of layers
        self.tables: list[BlockTable] = []  # of each group, while the sequence has a slot
        self.n_known = len(self.ids)  # ids to prefill: the prompt, or all before a preemption
        self.n_matched = 0  # of these, found in the KV cache
        self.cache_reuse = 0 if n_written else cache_reuse
        self.moved: tuple[MovedChunk, ...] = ()  # chunks of the prompt found after another text
        self._moved_at_start: tuple[MovedChunk, ...] = ()  # those before any preemption
        self.n_reused = 0  # prompt tokens found in the KV cache at the start
        self.n_reused_blocks = 0  # full blocks, of all groups, that held them
        self.n_prefilled = 0  # known ids found or submitted
        self.n_submitted = n_written  # samples submitted
        self.n_written = n_written  # samples read
        self.finished = False
        self.pace = RunPace(request.pace, n_written)
        self.drafting: Drafting | None = None
        self.text_is_stale = False
        """Whether the device's penalties count other tokens than those of the text."""
        self.grammar = grammar
        self.not_finite: NonFinite | None = None  # see `Repeated`
        self.keeps_cache = True  # others may use its keys and values
        self._preview: tuple[list[Sampled], list[int], StepResult] | None = None
        self._n_dropped = 0  # previews in flight that are discarded when they are read
        self._n_prompt_submitted = 0
        self._n_written_before = n_written  # on another engine
        self._updates = PendingUpdates(request.updates, self.interventions)
        self._eos_ids = eos_ids
        written = self.ids[len(self.prompt) :]
        self._events = RunEvents(self.prompt, written, params.stop, tokenizer, on_event)

    # ---- what to submit ---------------------------------------------------------------------

    @property
    def number(self) -> int:
        """Return the scheduler's number of this run."""
        return self.order[1]

    @property
    def asked_at(self) -> float:
        """Time of the request, in seconds by `time.perf_counter`."""
        return self._events.clock.asked

    @property
    def first_token_at(self) -> float:
        """Time at which the first token was read, by the same clock; infinite until then."""
        first = self._events.clock.first
        return math.inf if first is None else first

    @property
    def prefilling(self) -> bool:
        return self.n_prefilled < self.n_known

    @property
    def n_to_prefill(self) -> int:
        """Known ids that were neither found nor submitted."""
        return self.n_known - self.n_prefilled - self._n_moved_from(self.n_prefilled)

    @property
    def next_found(self) -> int:
        """Position of the next token that need not be computed; behind the known ids if there is
        none."""
        return next((c.first for c in self.moved if c.first >= self.n_prefilled), self.n_known)

    def _n_moved_from(self, position: int) -> int:
        return sum(chunk.end - chunk.first for chunk in self.moved if chunk.first >= position)

    @property
    def settled(self) -> bool:
        """Return whether all submitted samples were read."""
        return self.n_submitted == self.n_written

    @property
    def paused(self) -> bool:
        """Return whether nothing will be written until somebody asks for it."""
        return not self.pace.may_write(self.n_written)

    @property
    def paused_since(self) -> float | None:
        """Time of the last press or change of pace if the run is paused now, else None. May be read
        by any thread."""
        return self.pace.changed_at if self.paused else None

    @property
    def _previewing(self) -> bool:
        """Return whether the last sample that was submitted is a preview."""
        return self.n_submitted > self.n_written and not self.pace.may_write(self.n_submitted - 1)

    @property
    def due_at(self) -> float | None:
        """Return when the next token is due by `time.perf_counter`, if the run waits for that."""
        waits = self.settled and not self.prefilling and not self.finished
        return self.pace.due_at if waits and not self.pace.is_due else None

    @property
    def wants_decode(self) -> bool:
        """Return whether another token may be submitted."""
        return (
            not self.finished
            and not self.prefilling
            and self.pace.is_due
            and self.n_submitted < self.params.max_tokens
            and (self.next_position < self.context or self.context_shift is not None)
            and not self._must_settle
        )

    @property
    def _must_settle(self) -> bool:
        """Return whether all submitted samples must be read before the next one is submitted: the
        grammar must read them, the pace is limited, drafts are in flight or shall be, or the device
        must be told the text."""
        drafting = self.drafting
        if self.settled or self.grammar is not None or self.pace.limits:
            return not self.settled
        if drafting is None or self.needs_text:
            return self.needs_text
        return bool(drafting.in_flight) or drafting.expected(self._room()) > 0

    @property
    def needs_text(self) -> bool:
        """Return whether the device must be told the text before the next sample."""
        return self.text_is_stale and self.params.has_penalty

    @property
    def n_counted(self) -> int:
        """Number of the last `ids` that count as written, for penalties: those that were read, and
        those of a run that this one continues."""
        return min(len(self.ids), self.params.first_index + self.n_written)

    @property
    def next_index(self) -> int:
        """Index in the text of the token of the row that feeds the next sample."""
        return len(self.prompt) + self.n_submitted - 1

    @property
    def next_position(self) -> int:
        """Position of the row that feeds the next sample."""
        return self.next_index - self.n_shifted

    @property
    def prefill_position(self) -> int:
        """Position of the next known id that is to be computed."""
        return self.n_prefilled - self.n_shifted

    @property
    def is_full(self) -> bool:
        """Return whether the oldest tokens must leave the cache before the next is computed."""
        next = self.prefill_position if self.prefilling else self.next_position
        return self.context_shift is not None and next == self.context

    @property
    def n_until_full(self) -> int:
        """Known ids that can be computed before tokens must leave the cache again."""
        if self.context_shift is None:
            return self.n_known
        return self.context - self.prefill_position or self.context_shift.n_drop

    @property
    def owned_blocks(self) -> list[int]:
        """KV blocks of all groups, without those that were freed."""
        return [block for table in self.tables for block in table.owned]

    @property
    def blocks_to_start(self) -> int:
        """KV blocks of a group for the known ids and the next token."""
        return blocks_for(min(self.context, self.n_known + 1))

    @property
    def n_computed(self) -> int:
        """Number of leading `ids` whose keys and values are on the device or on their way. Rows
        past a stop were submitted too, but their tokens are not in `ids`; the row of a preview may
        be computed again under other interventions."""
        if self.prefilling:
            return self.n_prefilled
        return min(self.next_index, len(self.ids) - self._previewing)

    def reuse_prefix(self, n: int, n_blocks: int) -> None:
        """Skip the first `n` known ids, found in the KV cache, of all groups in `n_blocks` full
        blocks. To be called before any row is made."""
        self.n_matched = self.n_prefilled = n
        if not self.n_preemptions:
            self.n_reused = self._n_prompt_submitted = min(n, len(self.prompt))
            self.n_reused_blocks = n_blocks

    def reuse_chunks(self, chunks: Iterable[ReusableChunk]) -> None:
        """Skip chunks of the prompt whose keys and values are moved from another text. All from the
        first on is approximate. To be called before any row is made."""
        self.moved = tuple(MovedChunk(c.first, c.end, c.source) for c in chunks)
        self._moved_at_start = self.moved
        self.block_hashes.begin_approximate(self.moved[0].first)
        self._skip_moved()

    def _skip_moved(self) -> None:
        for chunk in self.moved:
            if chunk.first == self.n_prefilled:
                self.n_prefilled = chunk.end

    def preempt(self) -> None:
        """Forget what was computed. All ids read until the run resumes are prefilled then, without
        chunks of other texts."""
        self._drop_preview()
        if self.paused:
            self._events.clock.wait()
        self.n_preemptions += 1
        self.moved = ()
        self.block_hashes.forget_approximate()
        self.slot = -1
        self.n_prefilled = self.n_matched = self.n_shifted = 0
        self.interventions.leave_slot()

    def resume(self) -> None:
        """Make all ids known; every submitted sample was read."""
        assert self.settled, "samples are still in flight"
        self._restore_updates()
        self.n_known = len(self.ids)
        self.text_is_stale = False  # a slot begins with all tokens of the text

    def apply_scheduled_updates(self) -> None:
        """Apply the scheduled updates of the next token to submit. While drafts are in flight it is
        not known which that is: they are read first. A preview may be submitted again before."""
        if self._previewing or (self.drafting is not None and self.drafting.in_flight):
            return
        while not self.finished and (due := self._updates.take(self.n_submitted)) is not None:
            change, resolved = due
            self.update(change.params, change.capture, resolved)

    def _restore_updates(self) -> None:
        """Apply the updates that acted on another engine, where they were sent."""
        if not self._n_written_before:
            return
        while (due := self._updates.take(self._n_written_before)) is not None:
            change, resolved = due
            self._change(change.params, change.capture, resolved, change.index)

    def prefill_rows(self, n: int) -> list[Row]:
        """Return the next `n` rows of known ids."""
        first = self.n_prefilled
        self.n_prefilled += n
        self._skip_moved()
        if self.drafting is not None:
            self.drafting.index(self.ids, self.n_prefilled)
        submitted = min(self.n_prefilled, len(self.prompt))
        self._n_prompt_submitted = max(self._n_prompt_submitted, submitted)
        return [Row(self.slot, i - self.n_shifted, self.ids[i]) for i in range(first, first + n)]

    @property
    def draft_room(self) -> int:
        """Number of tokens that may be drafted for the next step; 0 until all samples were read."""
        may_draft = self.settled and self.wants_decode and not self.pace.limits
        return max(0, self._room()) if may_draft else 0

    def drafts_wanted(self, most: int, n_beside: int) -> int:
        """Return how many drafts to verify in the next step, at most `most`, beside `n_beside` rows
        of other sequences."""
        if self.drafting is None or not self.settled or self.pace.limits:
            return 0
        return self.drafting.wanted(min(most, self._room()), n_beside)

    def take_drafts(self, n: int, n_beside: int) -> list[int]:
        """Return the next `n` drafts, which are in flight now."""
        return self.drafting.take(n, n_beside) if self.drafting is not None and n else []

    def tell_text(self) -> tuple[int, list[int], int]:
        """Return slot, ids and `n_counted`, which the device is told."""
        self.text_is_stale = False
        return self.slot, self.ids, self.n_counted

    def decode_rows(self, drafts: list[int]) -> list[Row]:
        """Return the row of the last sampled token, which the host may not have read yet, and those
        of `drafts` after it."""
        # An id that was read is named: the device may have chosen another one after a rejected
        # draft, and of a model in stages the first device does not have it.
        tokens = [self.ids[-1] if self.settled else FROM_GPU, *drafts]
        return [Row(self.slot, self.next_position + i, token) for i, token in enumerate(tokens)]

    def sample(self, row: int, n_drafts: int = 0, verifies: bool = False) -> Sample:
        """Return the draw of the next token, after rows[row] of the step. `n_drafts`: rows up to
        that one which are drafts."""
        index = self.n_submitted
        self.n_submitted += 1
        if self.pace.rate:
            self._events.clock.go_on(self.pace.due_at)
            self.pace.submitted()
        sample = Sample.of(self.params, row=row, slot=self.slot, index=index)
        if self.grammar is not None:
            return replace(sample, n_allowed=self.grammar.n_allowed)
        return replace(sample, n_drafts=n_drafts, verifies=verifies) if verifies else sample

    def _room(self) -> int:
        """Return how many drafts may follow the next row: up to the limits of the text, the next
        scheduled update and the next change of interventions."""
        at, n = self.next_index, self.n_submitted
        room = min(self.params.max_tokens - n - 1, self.context - self.next_position - 1)
        if self._updates.next_index is not None:
            room = min(room, self._updates.next_index - n - 1)
        if room <= 0:
            return 0
        return self.interventions.schedule.next_change(at, at + 1 + room) - at - 1

    # ---- what came back ---------------------------------------------------------------------

    def accepted(self, position: int) -> None:
        """Send that the run waits; `position` other runs are before it."""
        self._events.accepted(position, self.params, self.capture, self.context, self.number)

    def queue_moved(self, position: int) -> None:
        """Send the place of a waiting run, if it changed."""
        self._events.moved_to(position)

    def started(self) -> None:
        """Note the start; of a resumed run, send that it waits no longer."""
        if self.n_preemptions:
            self.queue_moved(0)
        else:
            self._events.clock.start()

    def chunk_read(self, first: int, n: int, first_row: int, result: StepResult) -> None:
        """Handle a finished chunk: ids first … first + n − 1 were rows first_row … of the step.
        Prompt tokens are sent once, even if a preempted run computes them again."""
        last = min(first + n, len(self.prompt)) - 1
        to_tell = max(first, self._events.n_prompt_sent)
        if to_tell > last:
            return
        row = self._row_result(last, first_row + last - first, result)
        n_blocks = self.n_reused_blocks if frees_blocks(self.windows) else msgspec.UNSET
        found = FoundPrefix(self.n_reused, n_blocks, self._moved_at_start)
        self._events.prefilled(to_tell, row, found)

    def samples_read(self, samples: list[Sampled], rows: list[int], result: StepResult) -> None:
        """Handle the samples of a step: that of its only row, or those that verify drafts, of which
        the samples after a rejected one are discarded. That of a preview is held."""
        if self._n_dropped:
            self._n_dropped -= 1
        elif self._previewing:
            self._hold(samples, rows, result)
        else:
            self._write(samples, rows, result)

    @property
    def discards_next(self) -> bool:
        """Return whether the next samples that are read are discarded."""
        return self._n_dropped > 0

    def is_as_before(self, rows: tuple[Row, ...], sample: Sample) -> bool:
        """Return whether rows that were run for `sample`, the next to be read, would be the same
        now: by their places in the cache and by the settings."""
        first, last = rows[0].position, rows[-1].position - (len(rows) - 1 - sample.row)
        index = self.n_written
        own = Sample.of(self.params, row=sample.row, slot=self.slot, index=index)
        return (
            last + self.n_shifted == len(self.ids) - 1
            and replace(sample, n_drafts=0, verifies=False, n_allowed=0) == own
            and all(
                window is None or table.n_freed * BLOCK_TOKENS <= max(0, first + 1 - window)
                for window, table in zip(self.windows, self.tables, strict=True)
            )
        )

    def repeated_read(self, again: Repeated) -> None:
        """Handle samples that were drawn a second time, as the first was not a number. Those in
        flight, which follow from it, are discarded."""
        self.not_finite = again.not_finite
        self.samples_read(list(again.result.samples), again.rows, again.result)
        self.text_is_stale = True
        if self._preview is not None:
            return
        self._n_dropped = self.n_submitted - self.n_written
        self.n_submitted = self.n_written

    def _hold(self, samples: list[Sampled], rows: list[int], result: StepResult) -> None:
        """Hold the samples of a preview, and tell what the next token will be drawn from."""
        if not math.isfinite(samples[0].logprob):
            self._write(samples, rows, result)  # which ends the run
            return
        self._preview = samples, rows, result
        self._events.clock.wait()
        n_allowed = None if self.grammar is None else self.grammar.n_allowed
        self._events.preview(samples[0], self.n_written, n_allowed)

    def _drop_preview(self) -> None:
        """Have the step of a preview run again."""
        if not self._previewing:
            return
        self._n_dropped += self._preview is None
        self._preview = None
        self.n_submitted = self.n_written
        self.text_is_stale = True

    def _write(self, samples: list[Sampled], rows: list[int], result: StepResult) -> None:
        """Write the tokens of a step."""
        drafting = self.drafting
        drafts: list[int] = []
        if drafting is not None and drafting.in_flight:
            drafts = drafting.in_flight
            ms = result.gpu_ms if result.gpu_ms is not None else result.wait_ms
            n_accepted = drafting.verify([sampled.id for sampled in samples], ms)
            samples = samples[: n_accepted + 1]
        for i, (sampled, row) in enumerate(zip(samples, rows, strict=False)):
            if not self.finished:
                self._token_read(sampled, row, result, self._events.draft(drafts, i, sampled.id))
        if drafts:
            self.text_is_stale = True
            self.n_submitted = self.n_written
            self.apply_scheduled_updates()
        if self.pace.rate:
            self._events.clock.wait()
        if drafting is not None and not self.finished:
            drafting.propose(self.ids)

    def _token_read(
        self, sampled: Sampled, row: int, result: StepResult, draft: Draft | None
    ) -> None:
        """Handle the next token: emit the text that may be shown, and end the run if it must
        end."""
        if not math.isfinite(sampled.logprob):
            self._events.flush()
            self.keeps_cache = False
            self.finish("error", _not_a_number(self.not_finite))
            return
        index = self.n_written
        self.n_written += 1
        self.ids.append(sampled.id)
        goes_on = self.params.ignore_eos and self.grammar is None
        eos = sampled.id in self._eos_ids and not goes_on
        position = len(self.prompt) + index - 1
        grammar = self.grammar
        token = self._events.token(
            sampled,
            index,
            self._row_result(position, row, result),
            eos=eos,
            n_allowed=None if grammar is None else grammar.n_allowed,
            draft=draft,
        )
        if grammar is not None:
            grammar.read(sampled.id)
            grammar.end_within(self._n_left(position))
        if eos:
            self._events.flush()
            self._events.send(token)
            self.finish("eos")
            return
        reason, message = self._end_after(position)
        if self._events.show(token, is_last=reason is not None):
            self.finish("stop")
        elif reason:
            self._events.flush()
            self.finish(reason, message)

    def update(
        self,
        changes: dict[str, float | int],
        capture: bool | None,
        resolved: ResolvedInterventions | None = None,
        pace: PaceChange | None = None,
    ) -> int:
        """Apply changes to the tokens not submitted yet, previews among them; return the index of
        the first. Raises InvalidRequest for what cannot change."""
        self.params.updated(changes)  # before anything has changed
        has_settings = bool(changes) or capture is not None or resolved is not None
        if has_settings:
            self._drop_preview()
        index = self.n_submitted - self._previewing
        rate = self.pace.rate
        if pace is not None:
            self.pace.change(pace, index)
        self._change(changes, capture, resolved, index)
        requested = None if resolved is None else resolved.requested
        told = msgspec.UNSET if self.pace.rate == rate else self.pace.rate
        if told is not msgspec.UNSET:
            self._events.clock.go_on()
        if has_settings or pace is None or told is not msgspec.UNSET:
            self._events.send(Updated(index, self.params, self.capture, requested, told))
        if self.n_written >= self.params.max_tokens and not self.finished:
            self._events.flush()
            self.finish("length")
        elif pace is not None:
            self._go_on()
        return index

    def _go_on(self) -> None:
        """Write the preview, if that may be done now."""
        if self.paused:
            return
        self._events.clock.go_on()
        if self._preview is not None:
            held, self._preview = self._preview, None
            self._write(*held)
        self.apply_scheduled_updates()

    def _change(
        self,
        changes: dict[str, float | int],
        capture: bool | None,
        resolved: ResolvedInterventions | None,
        index: int,
    ) -> None:
        """Apply changes from token `index` on."""
        params = self.params.updated(changes)
        if resolved is not None:
            self.interventions.change(len(self.prompt) + index - 1, resolved)
        self.params = params
        if capture is not None:
            self.capture = capture

    def cancel(self, message: str = "") -> None:
        """End the run; text held back for a stop string is shown."""
        if not self.finished:
            self._events.flush()
            self.finish("cancelled", message)

    def finish(self, reason: Reason, message: str = "") -> None:
        if self.finished:
            return
        self.finished = True
        submitted = self._n_prompt_submitted
        n_moved = sum(c.end - c.first for c in self._moved_at_start if c.first < submitted)
        n_computed = submitted - self.n_reused - n_moved
        timings = self._events.clock.timings(self.n_reused, n_moved, n_computed, self.n_written)
        if self.drafting is not None:
            timings = self.drafting.counts.added_to(timings)
        self._events.send(Done(reason, len(self.prompt), self.n_written, timings, message))

    def _end_after(self, position: int) -> tuple[Reason | None, str]:
        """Reason why no token can follow the one sampled after `position`, and a message of it;
        None if one can."""
        if self.grammar is not None and self.grammar.complete:
            return "length" if self.grammar.closed else "stop", ""
        if self.n_written >= self.params.max_tokens:
            return "length", ""
        if position + 1 >= self.context and self.context_shift is None:
            return "context", ""
        if self.grammar is not None and self.grammar.failure:
            return "error", self.grammar.failure
        return None, ""

    def _n_left(self, position: int) -> int:
        """Return how many tokens may follow the one sampled after `position`."""
        n_left = int(self.params.max_tokens) - self.n_written
        return n_left if self.context_shift else min(n_left, self.context - 1 - position)

    def _row_result(self, position: int, row: int, result: StepResult) -> RowResult:
        """Return what was read of `row`, which computed the token at `position` of the text."""
        shift, in_cache = self.context_shift, position
        if shift is not None:
            in_cache = shift.position(position)
        return RowResult(
            position,
            row,
            result,
            captured=result.captured if self.capture else None,
            kv_blocks=sum(text_blocks(window, in_cache + 1) for window in self.windows),
            slid=(shift.n_left(position) if shift else 0) or msgspec.UNSET,
        )
