"""Fake engine without a GPU: the interface of `gpu.Engine`, one thread, a set delay per token.

It generates the story of `fake_tokenizer` (or another `text`) by sampling from plausible logits. It
has a queue, and applies updates and cancels. With interventions, it generates another part of the
story. Errors and the order of events are those of the real engine.
"""

from __future__ import annotations

import functools
import math
import queue
import threading
import time
import zlib
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import msgspec

from gpu import (
    NO_INTERVENTIONS,
    EngineClosed,
    Interventions,
    ModelError,
    Places,
    Request,
)
from gpu.engine.thread import ENDED_BY_CLOSE
from gpu.engine.validation import RequestValidator
from gpu.events import (
    Accepted,
    Done,
    Draft,
    Event,
    Prefill,
    Preview,
    Reason,
    StepTimes,
    Token,
    TokenText,
)
from gpu.info import (
    EngineStats,
)
from gpu.inspection.requests import Answer, Question, RecentSteps, StepPart
from gpu.inspection.steps import RunRows, StepRecord, step_reading
from gpu.kv.blocks import text_blocks
from gpu.step import ExpertUse
from tests.app import fake_inspection, fake_sampler
from tests.app.fake_options import (
    BLOCK_TOKENS,
    HANGS_AT,
    PREFILL_CHUNK,
    FakeOptions,
    info_of,
)
from tests.app.fake_run import FakeRun
from tests.app.fake_tokenizer import EOS, FakeTokenizer


def load(options: FakeOptions, progress: Callable[[float, str], None]) -> FakeEngine:
    """Load the fake engine; a `functools.partial` of it can be pickled."""
    for tenth in range(10):
        progress(tenth / 10, f"reading weights {tenth} of 10")
        time.sleep(options.load_seconds / 10)
    while options.loads_after and not options.loads_after.exists():
        time.sleep(0.01)
    if options.fail:
        raise ModelError(options.fail)
    return FakeEngine(options)


def loader(**options: Any) -> Callable[[Callable[[float, str], None]], FakeEngine]:
    return functools.partial(load, FakeOptions(**options))


class FakeGeneration:
    """Run as an iterator over its tokens."""

    def __init__(self, engine: FakeEngine, request: Request) -> None:
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._run = engine.submit(request, self._events.put)
        self.done: Done | None = None

    def cancel(self) -> None:
        self._run.cancel()

    def __iter__(self) -> Iterator[Token]:
        while self.done is None:
            event = self._events.get()
            if isinstance(event, Token):
                yield event
            elif isinstance(event, Done):
                self.done = event


class FakeEngine:
    """Fake of `gpu.Engine` with the same methods."""

    def __init__(self, options: FakeOptions) -> None:
        self.options = options
        self.tokenizer = FakeTokenizer(marks=options.marks)
        texts = options.script or (options.text,)
        self.stories = [self.tokenizer.encode(text, bos=False) for text in texts]
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.active: list[FakeRun] = []
        self.waiting: list[FakeRun] = []
        self.asked: deque[tuple[Question, Future[Answer]]] = deque()
        self.places: Places[FakeRun] = Places(
            options.n_slots + options.queue, "requests are running or waiting"
        )
        self.steps: deque[StepRecord] = deque(maxlen=512)
        self.n_steps = self.n_runs = 0
        self.closed = False
        self.failure: str | None = None
        self.busy_since: float | None = None
        self.info = info_of(options)
        self.validator = RequestValidator(
            self.info.model, options.context, options.loras, self.tokenizer.encode
        )
        self._thread = threading.Thread(target=self._loop, name="fake engine", daemon=True)
        self._thread.start()

    @property
    def stats(self) -> EngineStats:
        # Without the lock: an engine that hangs holds it, and its process must beat on.
        running, waiting = (
            [run.paused_since is not None for run in list(runs)]
            for runs in (self.active, self.waiting)
        )
        return EngineStats(
            n_running=running.count(False),
            n_waiting=waiting.count(False),
            n_paused=running.count(True) + waiting.count(True),
            used_blocks=sum(
                self._n_blocks(len(run.prompt) + run.index) for run in list(self.active)
            ),
            n_blocks=self.info.limits.n_blocks,
        )

    def submit(self, request: Request, on_event: Callable[[Event], None] | None = None) -> Any:
        if on_event is None:
            return FakeGeneration(self, request)
        self.validator.validate(request)
        if request.params.seed is None:
            params = msgspec.structs.replace(request.params, seed=42)
            request = msgspec.structs.replace(request, params=params)
        with self.changed:
            if self.closed:
                raise EngineClosed("the engine is closed")
            free = len(self.active) < self.options.n_slots and not self.waiting
            run = FakeRun(self, request, self.stories[0], on_event)
            self.places.take(run)
            if len(self.stories) > 1:
                del self.stories[0]
            run.position = position = 0 if free else len(self.waiting) + 1
            if free:
                self.active.append(run)
            else:
                insort(self.waiting, run, key=lambda run: run.priority)
            prompt = tuple(TokenText(id, self.tokenizer.piece(id)) for id in request.ids)
            context = self.options.context
            self.n_runs += 1
            run.number = self.n_runs
            on_event(
                Accepted(prompt, request.params, request.capture, position, context, run=run.number)
            )
            self.changed.notify()
        return run

    def inspect(self, question: Question, asker: int = 0) -> Future[Answer]:
        future: Future[Answer] = Future()
        with self.changed:
            if self.closed:
                raise EngineClosed("the engine is closed")
            self.asked.append((question, future))
            self.changed.notify()
        return future

    def cancel_questions(self, asker: int) -> None:
        """Do nothing: all questions are answered."""

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self.changed.notify()
        self._thread.join()

    # ---- the engine's thread -----------------------------------------------------------------

    def _loop(self) -> None:
        while True:
            with self.changed:
                self.busy_since = None
                self.changed.wait_for(self._has_work)
                if self.closed:
                    for run in self.active + self.waiting:
                        run.message = ENDED_BY_CLOSE
                        self._end(run, "error")
                    for _, future in self.asked:
                        future.set_exception(EngineClosed("the engine is closed"))
                    return
                self.busy_since = time.monotonic()
                self._drop_cancelled()
                self._record_step()
                for run in list(self.active):
                    self._step(run)
                asked = self.asked.popleft() if self.asked else None
            if asked is not None:
                self._answer(*asked)
            if self.options.delay:
                time.sleep(self.options.delay)

    def _has_work(self) -> bool:
        cancelled = any(run.cancelled for run in self.waiting)  # beside one that is paused
        writing = any(not run.waits for run in self.active)
        return self.closed or bool(self.asked) or cancelled or writing

    def _record_step(self) -> None:
        """Record what the next step has of every run, as `gpu.engine.step_log` does."""
        if not self.active:
            return
        parts = []
        for run in self.active:
            n = min(PREFILL_CHUNK, len(run.prompt) - run.prefilled)
            kind = StepPart.PREFILL if n else StepPart.DECODE
            parts.append(RunRows(run.number, kind, n or 1, 0))
        parts += [RunRows(run.number, StepPart.WAITING, 0, 0) for run in self.waiting]
        self.n_steps += 1
        self.steps.append(StepRecord(self.n_steps, 1000 * self.options.delay, tuple(parts)))

    def _answer(self, question: Question, future: Future[Answer]) -> None:
        time.sleep(self.options.ask_seconds)
        try:
            if isinstance(question, RecentSteps):
                steps = [step for step in self.steps if step.number > question.after]
                future.set_result(step_reading(steps))
                return
            future.set_result(fake_inspection.answer(question, self.info, self.n_runs))
        except Exception as error:
            future.set_exception(error)

    def _drop_cancelled(self) -> None:
        for run in [run for run in self.active + self.waiting if run.cancelled]:
            self._end(run, "cancelled")

    def _step(self, run: FakeRun) -> None:
        if run.clock.began is None:
            run.clock.start()
        if run.prefilled < len(run.prompt):
            self._prefill(run)
        elif not run.pace.may_write(run.index):
            self._preview(run)
        elif run.pace.is_due:
            run.clock.go_on(run.pace.due_at or math.inf)
            run.pace.submitted()
            self._decode(run)
        else:
            run.clock.wait()

    def _preview(self, run: FakeRun) -> None:
        """Tell what the next token will be drawn from, unless that is known."""
        if run.previewed:
            return
        chosen = self._choose(run)
        run.previewed = True
        run.clock.wait()
        names = ("candidates", "n_kept", "mass")
        run.on_event(Preview(run.index, **{name: chosen[name] for name in names}))  # type: ignore[arg-type]

    def _prefill(self, run: FakeRun) -> None:
        start = run.prefilled
        run.prefilled = min(len(run.prompt), start + PREFILL_CHUNK)
        chunk = range(start, run.prefilled)
        stats = tuple(self._stats(p, run.prompt[p], len(chunk)) for p in chunk if run.capture)
        done, total = run.prefilled, len(run.prompt)
        used = self._experts()
        # Measured, not invented: the page aligns clocks with it and would notice.
        ms = run.clock.since_start_ms()
        n_held = self._n_blocks(done)
        found = Prefill(done, total, run.reused, ms, 0.8 * ms, n_held, stats, used)
        if groups := self.options.kv_groups:
            reused_blocks = len(groups) * (run.reused // BLOCK_TOKENS)
            found = msgspec.structs.replace(found, reused_blocks=reused_blocks)
        run.on_event(found)

    def _choose(self, run: FakeRun) -> dict[str, object]:
        """Return what the sampler says of the next token."""
        run.settle()
        options, params = self.options, run.acting
        if params.seed == options.hangs_with and run.index == HANGS_AT:
            threading.Event().wait()
        place = params.first_index + run.index
        story = run.story
        wanted = story[(place + intervention_offset(run.active, len(story))) % len(story)]
        if options.ends and place == len(story):
            wanted = EOS
        position = len(run.prompt) + run.index - 1
        raw = fake_sampler.logits(wanted, position, self.tokenizer.vocab_size)
        assert params.seed is not None
        return fake_sampler.draw(raw, params, params.seed, place, run.ids, self.tokenizer)

    def _decode(self, run: FakeRun) -> None:
        chosen = self._choose(run)
        options, params = self.options, run.acting
        position = len(run.prompt) + run.index - 1
        run.previewed = False
        id = int(str(chosen["id"]))
        interval, paced = run.clock.token_ms()
        eos = id in self.tokenizer.eos_ids and not params.ignore_eos
        text, stopped = ("", False) if eos else self._text(run, id)
        token = Token(
            index=run.index,
            text=text,
            times=StepTimes(interval, max(0.1, 800 * options.delay), 0.4, 0.6, 0.1, paced),
            kv_blocks=self._n_blocks(position + 1),
            slid=(run.context_shift.n_left(position) if run.context_shift else 0) or msgspec.UNSET,
            stats=self._stats(position, id, len(self.active)) if run.captures else None,
            eos=eos,
            experts=self._experts(),
            draft=self._draft(run, id) if options.drafts else None,
            **chosen,  # type: ignore[arg-type]
        )
        run.index += 1
        run.ids.append(id)
        run.on_event(token)
        if eos:
            self._end(run, "eos")
        elif stopped:
            self._end(run, "stop")
        elif run.index >= run.params.max_tokens:
            self._end(run, "length")
        elif len(run.prompt) + run.index >= options.context and run.context_shift is None:
            self._end(run, "context")

    def _n_blocks(self, n_tokens: int) -> int:
        """Return the blocks that all groups of layers hold of a text of so many tokens."""
        windows = [group.window for group in self.options.kv_groups] or [None]
        return sum(text_blocks(window, n_tokens) for window in windows)

    def _draft(self, run: FakeRun, id: int) -> Draft | None:
        place = run.index % 4
        if place == 3:
            return None
        drafts = [TokenText(other, self.tokenizer.piece(other)) for other in (1 + id % 9, 2, 3)]
        own = TokenText(id, self.tokenizer.piece(id)) if place < 2 else drafts[0]
        rest = () if place < 2 else tuple(drafts[1:])
        return Draft(own.id, own.text, place, place < 2, rest)

    def _experts(self) -> ExpertUse | None:
        if self.options.experts is None:
            return None
        found, brought = self.options.experts
        return ExpertUse(found, brought, 1_000_000 * brought)

    def _text(self, run: FakeRun, id: int) -> tuple[str, bool]:
        """Return the text to show for this token, and whether a stop string ended the run."""
        run.undecoded += self.tokenizer.token_bytes(id)
        try:
            run.held += run.undecoded.decode()
        except UnicodeDecodeError as error:
            if len(run.undecoded) < 4 and error.reason == "unexpected end of data":
                return "", False
            run.held += run.undecoded.decode("utf-8", "replace")
        run.undecoded = b""
        for stop in run.params.stop:
            at = run.held.find(stop)
            if at >= 0:
                return run.held[:at], True
        keep = max((stop_prefix_length(run.held, stop) for stop in run.params.stop), default=0)
        if run.index + 1 >= run.params.max_tokens:
            keep = 0
        shown, run.held = run.held[: len(run.held) - keep], run.held[len(run.held) - keep :]
        return shown, False

    def _stats(self, position: int, id: int, n_rows: int) -> Any:
        options = self.options
        stats = fake_sampler.stats(position, id, options.n_layers, options.n_heads, n_rows)
        if not options.n_experts:
            return stats
        routes = fake_sampler.routes(position, options.n_layers, options.n_experts)
        return msgspec.structs.replace(stats, routes=routes)

    def _end(self, run: FakeRun, reason: Reason) -> None:
        if run in self.active:
            self.active.remove(run)
        else:
            self.waiting.remove(run)
        self.places.release(run)
        run.on_event(Done(reason, len(run.prompt), run.index, run.timings(), run.message))
        while self.waiting and len(self.active) < self.options.n_slots and not self.closed:
            self.active.append(self.waiting.pop(0))
            self.active[-1].move_to(0)
        for place, other in enumerate(self.waiting, start=1):
            other.move_to(place)


def intervention_offset(interventions: Interventions, n: int) -> int:
    """Return the offset in a story of `n` tokens that these interventions cause; 0 without any."""
    if interventions == NO_INTERVENTIONS:
        return 0
    return 1 + zlib.crc32(msgspec.json.encode(interventions)) % (n - 1)


def stop_prefix_length(text: str, stop: str) -> int:
    """Return the number of characters at the end of `text` that may begin `stop`."""
    return next(
        (n for n in range(min(len(text), len(stop) - 1), 0, -1) if stop.startswith(text[-n:])), 0
    )
