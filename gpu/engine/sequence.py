"""One run in the engine: its place in the scheduler and in the KV cache, and the states it passes.

`prefill` brings the known ids into the cache, `decoding` submits samples, `preview` holds that of a
paused run, `text` takes in the tokens that were read. What follows from several of them is here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from gpu.engine.decoding import Decoding, Draws
from gpu.engine.pending_updates import PendingUpdates
from gpu.engine.prefill import Prefill
from gpu.engine.preview import Preview
from gpu.engine.run_events import FoundPrefix, RowResult
from gpu.engine.run_text import RunText
from gpu.events import Done, Event, Reason, Updated
from gpu.interventions.messages import NONE_ENCODED
from gpu.interventions.resolved import ResolvedInterventions, RunInterventions
from gpu.kv.block_table import BlockTable
from gpu.kv.blocks import frees_blocks, text_blocks
from gpu.kv.context_shift import ContextShift
from gpu.kv.prefix_cache import BlockHashes
from gpu.pace import PaceChange, RunPace
from gpu.request import Request
from gpu.step import NonFinite, Row, Sample, StepResult
from gpu.text.grammar_matcher import GrammarMatcher
from gpu.text.token_table import TokenizerLike

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


def _no_interventions(request: Request) -> RunInterventions:
    """Return the interventions of a request that has none."""
    n_prompt = len(request.ids) - request.n_written
    return RunInterventions((NONE_ENCODED, *[None] * len(request.updates)), n_prompt)


class Sequence:
    """One run. All methods are called by the engine's thread."""

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
        n_written = request.n_written
        self.text = RunText(
            request, tokenizer, eos_ids, context, grammar=grammar, on_event=on_event
        )
        self.prompt, self.ids = self.text.prompt, self.text.ids
        self.capture = request.capture
        self.interventions = interventions or _no_interventions(request)
        digest_at = self.interventions.schedule.digest_at
        self.block_hashes = BlockHashes(digest_at, request.cache_salt)  # of ids
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
        self.keeps_cache = True  # others may use its keys and values
        reuse = 0 if n_written else cache_reuse
        self.prefill = Prefill(len(self.prompt), len(self.ids), reuse)
        self.decoding = Decoding(self.text)
        self.pace = RunPace(request.pace, n_written)
        self.preview = Preview(self.text, self.decoding, self.pace)
        self.finished = False
        self._n_written_before = n_written  # on another engine
        self._updates = PendingUpdates(request.updates, self.interventions)
        for update in request.updates:
            if n_written and update.index <= n_written:  # it acted on another engine
                self._change(update.params, update.capture, None, update.index)
        self._not_finite: NonFinite | None = None  # see `Repeated`

    @property
    def number(self) -> int:
        """Return the scheduler's number of this run."""
        return self.order[1]

    @property
    def paused(self) -> bool:
        """Return whether nothing will be written until somebody asks for it."""
        return not self.pace.may_write(self.text.n_written)

    @property
    def paused_since(self) -> float | None:
        """Time of the last press or change of pace if the run is paused now, else None. May be read
        by any thread."""
        return self.pace.changed_at if self.paused else None

    # ---- place in the scheduler and in the cache ----------------------------------------------

    def accepted(self, position: int) -> None:
        """Send that the run waits; `position` other runs are before it."""
        text = self.text
        text.events.accepted(position, text.params, self.capture, self.context, self.number)

    def started(self) -> None:
        """Note the start; of a resumed run, send that it waits no longer."""
        if self.n_preemptions:
            self.text.events.moved_to(0)
        else:
            self.text.events.clock.start()

    def preempt(self) -> None:
        """Forget what was computed. All ids read until the run resumes are prefilled then."""
        self.preview.drop()
        if self.paused:
            self.text.events.clock.wait()
        self.n_preemptions += 1
        self.block_hashes.forget_approximate()
        self.prefill.restart()
        self.slot = -1
        self.n_shifted = 0
        self.interventions.leave_slot()

    def resume(self) -> None:
        """Make all ids known; every submitted sample was read."""
        assert self.decoding.settled, "samples are still in flight"
        self._restore_updates()
        self.prefill.n_known = len(self.ids)
        self.decoding.text_is_stale = False  # a slot begins with all tokens of the text

    @property
    def owned_blocks(self) -> list[int]:
        """KV blocks of all groups, without those that were freed."""
        return [block for table in self.tables for block in table.owned]

    @property
    def n_computed(self) -> int:
        """Number of leading `ids` whose keys and values are on the device or on their way. Rows
        past a stop were submitted too, but their tokens are not in `ids`; the row of a preview may
        be computed again under other interventions."""
        return min(self.next_index, len(self.ids) - self.preview.is_submitted)

    @property
    def is_full(self) -> bool:
        """Return whether the oldest tokens must leave the cache before the next is computed."""
        return self.context_shift is not None and self.next_position == self.context

    @property
    def n_until_full(self) -> int:
        """Known ids that can be computed before tokens must leave the cache again."""
        if self.context_shift is None:
            return self.prefill.n_known
        return self.context - self.next_position or self.context_shift.n_drop

    # ---- what to submit -------------------------------------------------------------------------

    @property
    def prefilling(self) -> bool:
        return not self.prefill.is_done

    @property
    def next_index(self) -> int:
        """Index in the text of the token of the next row."""
        return self.prefill.n_done if self.prefilling else self.decoding.next_index

    @property
    def next_position(self) -> int:
        """Position of the next row."""
        return self.next_index - self.n_shifted

    @property
    def due_at(self) -> float | None:
        """Return when the next token is due by `time.perf_counter`, if the run waits for that."""
        waits = self.decoding.settled and not self.prefilling and not self.finished
        return self.pace.due_at if waits and not self.pace.is_due else None

    @property
    def wants_decode(self) -> bool:
        """Return whether another token may be submitted."""
        return (
            not self.finished
            and not self.prefilling
            and self.pace.is_due
            and self.decoding.n_submitted < self.text.most_written
            and (self.next_position < self.context or self.context_shift is not None)
            and not self._must_settle
        )

    @property
    def _must_settle(self) -> bool:
        """Return whether all submitted samples must be read before the next one is submitted: the
        grammar must read them, the greenlist of a watermark follows from them, the pace is limited,
        drafts are in flight or shall be, or the device must be given the text."""
        decoding = self.decoding
        if decoding.settled:
            return False
        if self.text.grammar is not None or self.text.params.watermark_bias or self.pace.limits:
            return True
        if decoding.needs_text or decoding.has_drafts:
            return True
        drafting = decoding.drafting
        return drafting is not None and drafting.expected(self._room()) > 0

    def _room(self) -> int:
        """Return how many drafts may follow the next row: up to the limits of the text, the next
        scheduled update and the next change of interventions. None with a watermark, as a slot has
        the greenlist of one token."""
        at, n = self.next_index, self.decoding.n_submitted
        room = min(self.text.most_written - n - 1, self.context - self.next_position - 1)
        if self.text.params.watermark_bias:
            return 0
        if self._updates.next_index is not None:
            room = min(room, self._updates.next_index - n - 1)
        if room <= 0:
            return 0
        return self.interventions.schedule.next_change(at, at + 1 + room) - at - 1

    @property
    def draft_room(self) -> int:
        """Number of tokens that may be drafted for the next step; 0 until all samples were read."""
        may_draft = self.decoding.settled and self.wants_decode and not self.pace.limits
        return self._room() if may_draft else 0

    def drafts_wanted(self, most: int, n_beside: int) -> int:
        """Return how many drafts to verify in the next step, at most `most`, beside `n_beside` rows
        of other sequences."""
        drafting = self.decoding.drafting
        if drafting is None or not self.decoding.settled or self.pace.limits:
            return 0
        return drafting.wanted(min(most, self._room()), n_beside)

    def prefill_rows(self, n: int) -> list[Row]:
        """Return the next `n` rows of known ids."""
        indices = self.prefill.take(n)
        if self.decoding.drafting is not None:
            self.decoding.drafting.index(self.ids, self.prefill.n_done)
        return [Row(self.slot, i - self.n_shifted, self.ids[i]) for i in indices]

    def decode_rows(self, drafts: list[int]) -> list[Row]:
        """Return the row of the last sampled token, and those of `drafts` after it."""
        tokens = self.decoding.next_tokens(drafts)
        return [Row(self.slot, i, token) for i, token in enumerate(tokens, self.next_position)]

    def sample(self, row: int, n_drafts: int = 0, verifies: bool = False) -> Sample:
        """Return the draw of the next token, as `Decoding.sample`, at the run's pace."""
        if self.pace.rate:
            self.text.events.clock.go_on(self.pace.due_at)
            self.pace.submitted()
        return self.decoding.sample(self.slot, row, n_drafts, verifies)

    # ---- what came back -------------------------------------------------------------------------

    def chunk_read(self, chunk: range, first_row: int, result: StepResult) -> None:
        """Handle a finished chunk of known ids, which were rows from `first_row` on of the step.
        Prompt tokens are sent once, even if a preempted run computes them again."""
        last = min(chunk.stop, len(self.prompt)) - 1
        first = max(chunk.start, self.text.events.n_prompt_sent)
        if first > last:
            return
        prefill = self.prefill
        n_blocks = prefill.n_reused_blocks if frees_blocks(self.windows) else msgspec.UNSET
        found = FoundPrefix(prefill.n_reused, n_blocks, prefill.moved_at_start)
        row = self._row_result(last, first_row + last - chunk.start, result)
        self.text.events.prefilled(first, row, found)

    def samples_read(self, draws: Draws) -> None:
        """Handle the samples of a step: that of its only row, or those that verify drafts, of which
        the samples after a rejected one are discarded. That of a preview is held."""
        if self.decoding.n_discarded:
            self.decoding.n_discarded -= 1
        elif self.preview.is_submitted and math.isfinite(draws.samples[0].logprob):
            self.preview.hold(draws)
        else:
            self._write(draws)

    def repeated_read(self, again: Repeated) -> None:
        """Handle samples that were drawn a second time, as the first was not a number. Those in
        flight, which follow from it, are discarded."""
        self._not_finite = again.not_finite
        self.samples_read(Draws(list(again.result.samples), again.rows, again.result))
        decoding = self.decoding
        decoding.text_is_stale = True
        if not self.preview.is_held:
            decoding.rewind(n_in_flight=decoding.n_submitted - self.text.n_written)

    def _write(self, draws: Draws) -> None:
        """Write the tokens of a step."""
        samples, result, drafting = draws.samples, draws.result, self.decoding.drafting
        drafts: list[int] = []
        if drafting is not None and drafting.in_flight:
            drafts = drafting.in_flight
            ms = result.gpu_ms if result.gpu_ms is not None else result.wait_ms
            n_accepted = drafting.verify([sampled.id for sampled in samples], ms)
            samples = samples[: n_accepted + 1]
        for i, (sampled, row) in enumerate(zip(samples, draws.rows, strict=False)):
            if self.finished:
                break
            if not math.isfinite(sampled.logprob):
                self.keeps_cache = False
                self._finish_text("error", _not_a_number(self._not_finite))
                break
            fed = self._row_result(len(self.ids) - 1, row, result)
            draft = self.text.events.draft(drafts, i, sampled.id)
            if (end := self.text.read(sampled, fed, draft)) is not None:
                self.finish(*end)
        if drafts:
            self.decoding.rewind()
            self.apply_scheduled_updates()
        if self.pace.rate:
            self.text.events.clock.wait()
        if drafting is not None and not self.finished:
            drafting.propose(self.ids)

    def _row_result(self, index: int, row: int, result: StepResult) -> RowResult:
        """Return what was read of `row`, which computed token `index` of the text."""
        shift, position = self.context_shift, index
        if shift is not None:
            position = shift.position(index)
        return RowResult(
            index,
            row,
            result,
            captured=result.captured,
            kv_blocks=sum(text_blocks(window, position + 1) for window in self.windows),
            slid=(shift.n_left(index) if shift else 0) or msgspec.UNSET,
        )

    # ---- changes and the end --------------------------------------------------------------------

    def update(
        self,
        changes: dict[str, float | int],
        capture: bool | None,
        resolved: ResolvedInterventions | None = None,
        pace: PaceChange | None = None,
    ) -> int:
        """Apply changes to the tokens not submitted yet, previews among them; return the index of
        the first. Raises InvalidRequest for what cannot change."""
        text = self.text
        text.params.updated(changes)  # before anything has changed
        has_settings = bool(changes) or capture is not None or resolved is not None
        if has_settings:
            self.preview.drop()
        index = self.decoding.n_submitted - self.preview.is_submitted
        rate = self.pace.rate
        if pace is not None:
            self.pace.change(pace, index)
        self._change(changes, capture, resolved, index)
        requested = None if resolved is None else resolved.requested
        new_rate = msgspec.UNSET if self.pace.rate == rate else self.pace.rate
        if new_rate is not msgspec.UNSET:
            text.events.clock.go_on()
        if has_settings or pace is None or new_rate is not msgspec.UNSET:
            text.events.send(Updated(index, text.params, self.capture, requested, new_rate))
        if text.n_written >= text.most_written and not self.finished:
            self._finish_text("length")
        elif pace is not None:
            self._go_on()
        return index

    def apply_scheduled_updates(self) -> None:
        """Apply the scheduled updates of the next token to submit. While drafts are in flight it is
        not known which that is: they are read first. A preview may be submitted again before, and a
        run without a slot is not ready for them: those that acted on another engine come first."""
        decoding = self.decoding
        if self.slot < 0 or self.preview.is_submitted or decoding.has_drafts:
            return
        while not self.finished and (due := self._updates.take(decoding.n_submitted)) is not None:
            change, resolved = due
            self.update(change.params, change.capture, resolved)

    def _restore_updates(self) -> None:
        """Let the interventions of the updates that acted on another engine act where they were
        sent. Their settings are in force since the run is here."""
        if not self._n_written_before:
            return
        while (due := self._updates.take(self._n_written_before)) is not None:
            change, resolved = due
            self._change({}, None, resolved, change.index)
        self.interventions.act_last()

    def _go_on(self) -> None:
        """Write the preview, if that may be done now."""
        if self.paused:
            return
        self.text.events.clock.go_on()
        if (held := self.preview.take()) is not None:
            self._write(held)
        self.apply_scheduled_updates()

    def _change(
        self,
        changes: dict[str, float | int],
        capture: bool | None,
        resolved: ResolvedInterventions | None,
        index: int,
    ) -> None:
        """Apply changes from token `index` on."""
        params = self.text.params.updated(changes)
        if resolved is not None:
            self.interventions.change(len(self.prompt) + index - 1, resolved)
        self.text.params, self.text.n_due = params, max(self.text.n_due, index)
        if "max_tokens" in changes:
            self.text.limit_changed(in_flight=not self.decoding.settled)
        if capture is not None:
            self.capture = capture

    def cancel(self, message: str = "") -> None:
        """End the run; text held back for a stop string is shown."""
        if not self.finished:
            self._finish_text("cancelled", message)

    def _finish_text(self, reason: Reason, message: str = "") -> None:
        """End the run after showing the text held back for a stop string."""
        self.text.events.flush()
        self.finish(reason, message)

    def finish(self, reason: Reason, message: str = "") -> None:
        if self.finished:
            return
        self.finished = True
        events, prefill, n_written = self.text.events, self.prefill, self.text.n_written
        timings = events.clock.timings(
            prefill.n_reused, prefill.n_prompt_moved, prefill.n_prompt_computed, n_written
        )
        if self.decoding.drafting is not None:
            timings = self.decoding.drafting.counts.added_to(timings)
        events.send(Done(reason, len(self.prompt), n_written, timings, message))
