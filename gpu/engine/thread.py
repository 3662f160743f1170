"""Engine thread, which owns the device: handles commands, submits steps and reads their results.

Everything here runs on one thread, because a GPU device must not be driven by two. It submits
steps ahead of the ones it reads (`Runner.in_flight`), so the device does not wait for Python
between tokens. When there is nothing to do it warms up plans that have not been used yet.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from gpu.engine.activation_cache import ActivationCache
from gpu.engine.answers import answer, refuse
from gpu.engine.background_tasks import BackgroundTasks, QuestionQueue, run_until, timed
from gpu.engine.draft_model import DraftModel
from gpu.engine.inspector import Inspector, question_blocks
from gpu.engine.kv_copies import submit_copies
from gpu.engine.question_budget import QuestionBudget
from gpu.engine.questions.encode import embedding_info
from gpu.engine.questions.seq2seq import encoder_decoder_info
from gpu.engine.recompute import Recomputer
from gpu.engine.repeat import not_finite, repeat
from gpu.engine.scheduler import Scheduler
from gpu.engine.sequence import Repeated, Sequence
from gpu.engine.step_builder import Scheduled
from gpu.engine.updates import Update, UpdateQueue
from gpu.errors import EngineClosed, EngineError, InvalidRequest, QueueFull
from gpu.events import Reason
from gpu.info import EngineInfo, EngineStats
from gpu.inspection.requests import Question
from gpu.interventions.messages import Encode, InterventionSpan
from gpu.interventions.resolved import ResolvedInterventions
from gpu.load_options import DEFAULT_OPTIONS, LoadOptions
from gpu.places import ENDED_IN_PAUSE
from gpu.runner import NO_ENCODERS, Encoders, Runner
from gpu.speculative.draft_length import Cost
from gpu.speculative.drafting import Drafting, NgramDrafting
from gpu.step import StepResult
from gpu.watermark.greenlist import Greenlists

PREFILL_IN_FLIGHT = 2
"""Most steps with a prompt chunk in flight: few, so that a cancel acts soon. Every further stage of
a model may have one more."""

CLOSED = "the engine was closed; load it again"
ENDED_BY_CLOSE = "the engine was stopped"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Start:
    sequence: Sequence


@dataclass(frozen=True, slots=True)
class Cancel:
    sequence: Sequence


@dataclass(frozen=True, slots=True)
class EndPaused:
    """End a run if it is paused."""

    sequence: Sequence


@dataclass(frozen=True, slots=True)
class Logits:
    """Result: float32 (len(ids), vocab_size)."""

    ids: list[int]
    spans: tuple[InterventionSpan, ...] = ()


@dataclass(frozen=True, slots=True)
class Inspect:
    """Result: the `Answer` to the question. Questions of different askers take turns. `allowed`:
    see `Inspector.start`."""

    question: Question
    asker: Hashable = None
    allowed: npt.NDArray[np.bool_] | None = None


@dataclass(frozen=True, slots=True)
class CancelQuestions:
    """End the questions of `asker`."""

    asker: Hashable


@dataclass(frozen=True, slots=True)
class Close:
    pass


Describe = Callable[[Runner, Runner | None], EngineInfo]
"""Returns the description of an engine of this runner and that of its draft model."""

MakeDraft = Callable[[Runner], Runner]
"""Opens the runner of the draft model of an engine with this runner."""

MakeEncoders = Callable[[Runner], Encoders]
"""Opens the models with encoders beside this runner, on its device."""

OpenModels = tuple[Runner, Runner | None, Encoders, EngineInfo]
"""A runner, the other models open on its device, and what they report."""

Command = Start | Update | Cancel | EndPaused | Logits | Inspect | CancelQuestions | Close


class EngineThread:
    """Thread of one engine. It ends when it is closed or the device fails.

    describe      returns `info` of the runners; called on the thread, because it may record a plan
    encode        tokenizes the texts of interventions
    make_draft    opens the runner of the draft model, beside the other; None: there is none
    make_encoders the same for the embedding model and the encoder-decoder
    end_ids       tokens with which the tokenizer ends a text
    """

    def __init__(
        self,
        make_runner: Callable[[], Runner],
        describe: Describe,
        encode: Encode,
        options: LoadOptions = DEFAULT_OPTIONS,
        *,
        make_draft: MakeDraft | None = None,
        make_encoders: MakeEncoders | None = None,
        end_ids: tuple[int, ...] = (),
    ) -> None:
        self._options = options
        self._encode = encode
        self._end_ids = end_ids
        self.failure: str | None = None
        self.busy_since: float | None = None
        """`time.monotonic` when the current round of the loop began; None while it waits."""
        self._commands: queue.Queue[tuple[Command, Future[Any]]] = queue.Queue()
        self._posting = threading.Lock()
        self._has_ended = False  # no command is read any more
        self._in_flight: deque[Scheduled] = deque()
        self._collected: deque[StepResult] = deque()  # results of the first of those
        self._background = BackgroundTasks()
        self._lost_step: Exception | None = None
        self._resolving = False
        self._warm_up: Iterator[None] | None = None
        ready: Future[tuple[Runner, EngineInfo]] = Future()
        self._thread = threading.Thread(
            target=self._main,
            args=(lambda: _open_models(make_runner, make_draft, make_encoders, describe), ready),
            name="tokenglass engine",
            daemon=True,
        )
        self._thread.start()
        self.runner, self.info = ready.result()

    def post(self, command: Command) -> Future[Any]:
        """Queue a command. Raises EngineClosed when nobody will read it any more."""
        future: Future[Any] = Future()
        with self._posting:
            if self._has_ended:
                raise EngineClosed(self.failure or CLOSED)
            self._commands.put((command, future))
        return future

    def stats(self) -> EngineStats:
        """Return what runs and waits now; from any thread."""
        return self._scheduler.stats()

    def close(self) -> None:
        """End all runs and release the device."""
        if self._thread.is_alive():
            self._commands.put((Close(), Future()))
            self._thread.join()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    # ---- on the thread ----------------------------------------------------------------------

    def _main(
        self,
        open_models: Callable[[], OpenModels],
        ready: Future[tuple[Runner, EngineInfo]],
    ) -> None:
        try:
            runner, draft, encoders, info = open_models()
        except BaseException as error:
            ready.set_exception(error)
            return
        options = self._options
        self._draft_model = DraftModel(draft, runner.config.vocab_size) if draft else None
        self._scheduler = Scheduler(
            runner.limits,
            prefix_cache=options.prefix_cache,
            max_prefill_slowdown=options.max_prefill_slowdown,
            make_drafting=self._make_drafting(),
        )
        self._questions = QuestionQueue(lambda: self._scheduler.n_free_blocks)
        self._budget = QuestionBudget()
        self._greenlists = Greenlists(runner.config.vocab_size)
        self._stepped = self._stalled = False
        recomputer = Recomputer(runner, self._scheduler, self._budget)
        warm_interventions = runner.warm_up(interventions=True) if options.warm_up else iter(())
        unpaced = Recomputer(runner, self._scheduler)  # runs wait for these
        self._activations = activations = ActivationCache(
            unpaced, runner.config, warm_interventions
        )
        self._inspector = Inspector(
            runner, self._scheduler, recomputer, activations, self._encode, self._end_ids, encoders
        )
        self._updates = UpdateQueue(activations, self._update)
        if options.warm_up:
            self._warm_up = chain(runner.warm_up(), draft.warm_up() if draft else ())
        ready.set_result((runner, info))
        try:
            while self._handle_commands(runner):
                self._advance(runner)
            self._end_all("error", ENDED_BY_CLOSE)  # not "cancelled": nobody asked for that
        except Exception as error:
            self.failure = f"the engine failed: {error}"
            log.exception("the engine failed")
            self._end_all("error", self.failure)
        finally:
            with self._posting:
                self._has_ended = True
            self._refuse_waiting()
            if draft is not None:
                draft.close()
            runner.close()

    def _make_drafting(self) -> Callable[[Cost], Drafting] | None:
        """Return what makes the speculative decoding of a sequence, if there is any."""
        if self._draft_model is not None:
            return self._draft_model.drafting
        return NgramDrafting if self._options.spec_type == "ngram" else None

    def _handle_commands(self, runner: Runner) -> bool:
        """Handle the commands that wait; return False to close. Sleeps while there is nothing to
        do."""
        while True:
            seconds = self._scheduler.seconds_until_due()
            idle = self._idle() or (self._stalled and seconds is not None)
            self.busy_since = None if idle else time.monotonic()
            seconds = seconds if idle else None
            try:
                command, future = self._commands.get(block=idle, timeout=seconds)
            except queue.Empty:
                return True
            if isinstance(command, Close):
                return False
            try:
                self._handle(command, future)
            except Exception as error:
                refuse(future, error)
            self._expect_no_lost_step()

    def _idle(self) -> bool:
        """Return whether there is nothing to do but wait for a command, or until a run is due."""
        busy = self._in_flight or self._scheduler.has_work
        return not (busy or self._background or self._questions) and self._warm_up is None

    def _handle(self, command: Command, done: Future[Any]) -> None:
        """Handle one command. `done` gets its result; that of a question once it is answered."""
        match command:
            case Inspect(question, asker, allowed):
                pieces = timed(self._inspector.start(question, allowed))
                self._questions.add(
                    pieces, done, asker, question_blocks(question, self._scheduler.kv.most_blocks)
                )
                return
            case Logits(ids, spans):
                self._questions.add(self._inspector.logits(ids, spans), done)
                return
            case Update():
                if (computing := self._updates.submit(command, done)) is not None:
                    self._background.add(computing, Future())
                return
            case CancelQuestions(asker):
                self._questions.cancel(asker)
            case Start(sequence):
                self._scheduler.add(sequence)
            case Cancel(sequence):
                sequence.cancel()
                self._scheduler.release(sequence)
            case EndPaused(sequence):
                if sequence.paused:
                    sequence.cancel(ENDED_IN_PAUSE)
                    self._scheduler.release(sequence)
        answer(done, None)

    def _update(self, update: Update, resolved: ResolvedInterventions | None) -> int:
        sequence = update.sequence
        try:
            while sequence.decoding.has_drafts:
                self._collect(self.runner)  # only then it is known which token is the next
        except Exception as error:
            self._lost_step = error
            raise
        if sequence.finished:
            raise InvalidRequest("this run has ended; settings act on the next one", "id")
        index = sequence.update(update.changes, update.capture, resolved, update.pace)
        self._scheduler.retry_waiting()
        if sequence.finished:
            self._scheduler.release(sequence)
        return index

    def _expect_no_lost_step(self) -> None:
        """Raise what collecting a step raised amid an update, of which the updater was told: the
        step's runs would wait for its samples for ever."""
        if self._lost_step is not None:
            raise self._lost_step

    def _advance(self, runner: Runner) -> None:
        """Submit steps while there is room, then read the oldest, or warm up if there is none. Each
        round also does a piece of background work that runs wait for, and questions within their
        budget."""
        self._budget.tick(self._scheduler.has_work, stepped=self._stepped)
        self._stepped = self._stalled = False
        self._advance_background(runner)
        if not self._resolving and (head := self._scheduler.to_resolve) is not None:
            self._resolving = True
            self._background.add(self._resolve_interventions(head), Future())
        for sequence in self._scheduler.admit():
            ids = np.array(sequence.ids, np.uint32)
            runner.begin_slot(sequence.slot, ids, sequence.text.n_counted)
            sequence.started()
        self._apply_kv_changes(runner)
        while len(self._in_flight) < runner.in_flight and self._submit(runner):
            pass
        if self._in_flight:
            self._stepped = not self._in_flight[0].chunks
            self._collect(runner)
        elif self._background or self._questions:
            return
        elif self._warm_up:
            self._warm_up = self._warm_up if _warm_up_next(self._warm_up) else None
        else:
            self._stalled = True

    def _advance_background(self, runner: Runner) -> None:
        """Do a piece of the work that runs wait for, and one of a question if its budget allows."""
        may_ask = bool(self._questions) and self._budget.may_work
        if not self._background and not may_ask:
            return
        while self._in_flight:
            self._collect(runner)
        if self._background:
            self._background.advance()
            self._expect_no_lost_step()
        if may_ask:
            with self._budget.piece():
                self._questions.advance()
            if not self._questions:
                self._scheduler.retry_waiting()

    def _resolve_interventions(self, sequence: Sequence) -> Generator[None, None, None]:
        """Compute what the interventions of the first waiting run need."""
        try:
            all_resolved: list[ResolvedInterventions | None] = []
            for wanted in sequence.interventions.encoded:
                ready = None
                if wanted is not None:
                    pieces = self._activations.resolve(wanted)
                    ready = yield from run_until(lambda: sequence.finished, pieces)
                    if sequence.finished:
                        return
                all_resolved.append(ready)
            sequence.interventions.set_resolved(tuple(all_resolved))
        except QueueFull:
            self._scheduler.wait_for_blocks(sequence)
        except EngineError as error:
            sequence.finish("error", str(error))
            self._scheduler.release(sequence)
        finally:
            self._resolving = False

    def _submit(self, runner: Runner) -> bool:
        """Submit the next step; return False if there is none now."""
        if self._draft_model is not None:
            self._draft_model.advance(self._scheduler)
        most = PREFILL_IN_FLIGHT + runner.limits.n_stages - 1
        room = sum(bool(s.chunks) for s in self._in_flight) < most
        scheduled = self._scheduler.next_step(prefill=room)
        self._apply_kv_changes(runner)
        if scheduled is None:
            return False
        for slot, active in scheduled.slot_interventions:
            runner.set_interventions(slot, active)
        for slot, ids, n_written in scheduled.slot_texts:
            runner.set_text(slot, np.array(ids, np.uint32), n_written)
        for slot, bitmask in scheduled.slot_bitmasks:
            runner.set_grammar_bitmask(slot, bitmask)
        for sequence, config in scheduled.watermarks:
            if config.seeding_scheme == "selfhash":
                runner.set_selfhash(sequence.slot, self._greenlists.selfhash(config, sequence.ids))
            else:
                bitmask = self._greenlists.bitmask(config, sequence.ids)
                runner.set_greenlist(sequence.slot, bitmask)
            sequence.text.is_green = partial(self._greenlists.is_green, config)
        runner.submit(scheduled.step)
        self._in_flight.append(scheduled)
        return True

    def _apply_kv_changes(self, runner: Runner) -> None:
        """Submit block copies and changed block tables, before anything else is scheduled."""
        kv = self._scheduler.kv
        submit_copies(runner, kv.copies)
        kv.copies.clear()
        for sequence in kv.changed_tables:
            for group, table in enumerate(sequence.tables):
                runner.set_blocks(sequence.slot, table.blocks, group)
        kv.changed_tables.clear()

    def _collect(self, runner: Runner) -> None:
        scheduled = self._in_flight.popleft()
        result = self._collected.popleft() if self._collected else runner.collect()
        ms = result.gpu_ms if result.gpu_ms is not None else result.wait_ms
        self._scheduler.learn(scheduled, ms)
        self._scheduler.steps.collected(scheduled, result, ms)
        for sequence in scheduled.read(result, self._repeat_not_finite(runner, scheduled, result)):
            self._scheduler.release(sequence)

    def _repeat_not_finite(
        self, runner: Runner, scheduled: Scheduled, result: StepResult
    ) -> dict[Sequence, Repeated]:
        """Run the rows of a step again that gave what is not a number, after all steps in
        flight."""
        sequences = not_finite(scheduled, result)
        while sequences and len(self._collected) < len(self._in_flight):
            self._collected.append(runner.collect())
        repeated = {sequence: repeat(runner, scheduled, sequence) for sequence in sequences}
        return {sequence: again for sequence, again in repeated.items() if again is not None}

    def _end_all(self, reason: Reason, message: str) -> None:
        for sequence in [*self._scheduler.active, *self._scheduler.waiting]:
            sequence.finish(reason, message)

    def _refuse_waiting(self) -> None:
        """Refuse the commands that came after the end."""
        message = self.failure or CLOSED
        self._updates.refuse(EngineClosed(message))
        self._background.refuse(EngineClosed(message))
        self._questions.refuse(EngineClosed(message))
        while not self._commands.empty():
            command, future = self._commands.get()
            if isinstance(command, Start):
                command.sequence.finish("error", message)
            refuse(future, EngineClosed(message))


def _open_models(
    make_runner: Callable[[], Runner],
    make_draft: MakeDraft | None,
    make_encoders: MakeEncoders | None,
    describe: Describe,
) -> OpenModels:
    """Open the runner, that of the draft model and the models with encoders if there are any."""
    runner, draft = make_runner(), None
    try:
        draft = make_draft(runner) if make_draft is not None else None
        encoders = make_encoders(runner) if make_encoders is not None else NO_ENCODERS
        info = describe(runner, draft)
        if (embedding := encoders.embedding) is not None:
            info = replace(info, embedding=embedding_info(embedding))
        if (model := encoders.encoder_decoder) is not None:
            info = replace(info, encoder_decoder=encoder_decoder_info(model))
        return runner, draft, encoders, info
    except BaseException:
        if draft is not None:
            draft.close()
        runner.close()
        raise


def _warm_up_next(warm_up: Iterator[None]) -> bool:
    """Compile one more kernel in advance; return False if there is none left. A failure only ends
    the warm-up: a request may never need what failed, and one that does gets the error."""
    try:
        return next(warm_up, "done") != "done"
    except Exception as error:
        log.error(
            "kernels could not be compiled in advance (%s); the first requests compile what they "
            "need and take longer",
            error,
        )
        log.debug("compiling in advance failed", exc_info=True)
        return False
