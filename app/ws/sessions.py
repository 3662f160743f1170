"""Generations of all browser sessions: start, update, stop, and the log of their messages.

A `GenerationLog` keeps its messages, encoded, in a log numbered by `seq`. Connections do not queue
messages of their own: each reads the log from a cursor, so a page that comes back with `after`
neither loses nor repeats one, and a slow page costs no memory. Only statistics and previews may go:
those of old messages when a log grows past its bound, and those of new ones for a page that is
behind.

A generation belongs to the browser session (cookie) that started it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from app.engine_client import EngineClient, Run, Tokenizer
from app.http.client_limits import ClientLimits
from app.prompt.tool_calls.writer import AnswerReader
from app.protocol.messages import Generation
from app.ws.continuation import continuation_texts, has_ended, report_ended
from gpu import EngineError, Grammar, Interventions, InvalidRequest, PaceChange, Request
from gpu.events import Accepted, Done, Event, Prefill, Preview, Queued, Token

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Retention:
    """Limits on how long and how much is kept.

    away_seconds      a generation without a page is cancelled after this time
    waiting_seconds   one that only waits in the queue, after this time: it has nothing to lose
    finished_seconds  a finished one can be resumed for this time
    n_finished        finished ones kept at most, oldest go first
    finished_bytes    bytes of all finished ones together
    stats_bytes       statistics kept per generation; the oldest go first, text never
    """

    away_seconds: float = 60.0
    waiting_seconds: float = 10.0
    finished_seconds: float = 900.0
    n_finished: int = 64
    finished_bytes: int = 128 * 1024 * 1024
    stats_bytes: int = 16 * 1024 * 1024


class UnknownGenerationError(EngineError):
    """This browser session has no generation of that name."""

    code = "unknown_generation"


class RequestClock:
    """Milliseconds since the server took a request. `prepared`: when its prompt was tokens."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self.prepared: float | None = None

    def now(self) -> float:
        return (time.perf_counter() - self._began) * 1e3


@dataclass(frozen=True)
class Additions:
    """Fields that the server adds to the events of a run: see `gpu.events.Accepted` and `Done`.
    `reader` finds the calls in its text, if the model was given tools."""

    texts: tuple[str, ...] = ()
    dropped: tuple[int, ...] = ()
    grammar: Grammar | None = None
    reader: AnswerReader | None = None

    def added_to(self, event: Event) -> Event:
        """Return the next event of the run with what belongs to it."""
        match event:
            case Accepted():
                grammar = msgspec.UNSET if self.grammar is None else self.grammar
                return msgspec.structs.replace(
                    event, texts=self.texts, dropped=self.dropped, grammar=grammar
                )
            case Token(id=id, text=text, eos=False) if self.reader is not None:
                self.reader.push(id, text)
            case Done() if self.reader is not None:
                return self.reader.finish(event)
        return event


NO_ADDITIONS = Additions()


class LogEntry:
    """One message: `full` with statistics (None when it has none, or they were dropped). `is_last`:
    no other follows."""

    __slots__ = ("full", "is_last", "lean")

    def __init__(self, message: Generation) -> None:
        event = message.event
        self.is_last = isinstance(event, Done)
        stripped = without_stats(event)
        lean = msgspec.structs.replace(message, event=stripped)
        self.lean = _encoded(lean)
        self.full = None if stripped is event else _encoded(message)


def _encoded(message: Generation) -> bytes:
    """Return a message as JSON. It is copied, as what `encode` returns keeps its whole buffer, of
    which about a quarter is unused."""
    return bytes(memoryview(msgspec.json.encode(message)))


class GenerationLog:
    """A generation: its log, its followers, its run in the engine. Thread-safe.

    A follower is called, without arguments, when the log has grown.
    """

    def __init__(
        self,
        owner: str,
        id: str,
        clock: RequestClock,
        retention: Retention,
        on_done: Callable[[], None],
        additions: Additions = NO_ADDITIONS,
    ) -> None:
        self.owner = owner
        self.id = id
        self._clock = clock
        self._additions = additions
        self.finished_at: float | None = None
        self._retention = retention
        self._on_done = on_done
        self._lock = threading.Lock()
        self._log: list[LogEntry] = []
        self._followers: list[Callable[[], None]] = []
        self._run: Run | None = None
        self._cancelled = False
        self._queued = True  # in the engine's queue
        self._away_timer: threading.Timer | None = None
        self._unfollowed_at = 0.0  # when the last follower went
        self._lean_bytes = 0
        self._stats_bytes = 0
        self._next_to_strip = 0

    @property
    def n_bytes(self) -> int:
        return self._lean_bytes + self._stats_bytes

    @property
    def last_seq(self) -> int:
        return len(self._log)

    def entry(self, seq: int) -> LogEntry | None:
        """The message `seq` (from 1), or None when it has not been written yet."""
        return self._log[seq - 1] if seq <= len(self._log) else None

    def on_event(self, event: Event) -> None:
        """Take an event of the engine; never blocks for long."""
        with self._lock:
            prepared = None if self._log else self._clock.prepared
            event = self._additions.added_to(event)
            if isinstance(event, Accepted | Queued):
                self._queued = event.position > 0
            elif isinstance(event, Prefill | Token):
                self._queued = False
            seq = len(self._log) + 1
            entry = LogEntry(Generation(self.id, seq, event, self._clock.now(), prepared))
            self._log.append(entry)
            self._lean_bytes += len(entry.lean)
            self._stats_bytes += len(entry.full or b"")
            self._strip_old_stats()
            followers = tuple(self._followers)
            if entry.is_last:
                self.finished_at = time.monotonic()
                self._run = None  # it holds this log: a cycle would keep the bytes of dropped ones
                self._stop_away_timer()
        for follower in followers:
            follower()
        if entry.is_last:
            self._on_done()

    def _strip_old_stats(self) -> None:
        while self._stats_bytes > self._retention.stats_bytes:
            entry = self._log[self._next_to_strip]
            self._stats_bytes -= len(entry.full or b"")
            entry.full = None
            self._next_to_strip += 1

    # ---- followers ---------------------------------------------------------------------------

    def follow(self, follower: Callable[[], None]) -> None:
        with self._lock:
            self._followers.append(follower)
            self._stop_away_timer()

    def unfollow(self, follower: Callable[[], None]) -> None:
        """Without a follower, a running generation is cancelled after `away_seconds`, and one that
        waits after `waiting_seconds`."""
        with self._lock:
            self._followers.remove(follower)
            if not self._followers and self.finished_at is None:
                self._unfollowed_at = time.monotonic()
                self._start_away_timer(self._away_seconds)

    @property
    def _away_seconds(self) -> float:
        away, waiting = self._retention.away_seconds, self._retention.waiting_seconds
        return min(away, waiting) if self._queued else away

    def _start_away_timer(self, seconds: float) -> None:
        self._away_timer = threading.Timer(seconds, self._on_away_timeout)
        self._away_timer.daemon = True
        self._away_timer.start()

    def _stop_away_timer(self) -> None:
        if self._away_timer is not None:
            self._away_timer.cancel()
            self._away_timer = None

    def _on_away_timeout(self) -> None:
        with self._lock:
            if self._followers or self.finished_at is not None:
                return
            left = self._unfollowed_at + self._away_seconds - time.monotonic()
            if left > 0:  # it began to write meanwhile
                self._start_away_timer(left)
                return
        log.info("generation cancelled: its page did not come back")
        self.cancel()

    # ---- the engine's run --------------------------------------------------------------------

    def attach(self, run: Run) -> None:
        with self._lock:
            self._run = run if self.finished_at is None else None
            cancelled = self._cancelled
        if cancelled:
            run.cancel()

    def cancel(self) -> None:
        with self._lock:
            self._cancelled = True
            run = self._run
        if run is not None and self.finished_at is None:
            run.cancel()

    def update(
        self,
        capture: bool | None,
        changes: dict[str, Any],
        interventions: Interventions | None = None,
        pace: PaceChange | None = None,
    ) -> None:
        """Change settings; the engine acknowledges with an `updated` event. Steps of `pace` are
        answered by the tokens."""
        run = self._run
        if run is None or self.finished_at is not None:
            raise InvalidRequest("this generation has ended; its settings cannot change any more")
        run.update(capture=capture, interventions=interventions, pace=pace, **changes)


class Sessions:
    """All generations of all browser sessions."""

    def __init__(
        self, engine: EngineClient, retention: Retention, client_limits: ClientLimits | None = None
    ) -> None:
        self._engine = engine
        self._retention = retention
        self._client_limits = client_limits or ClientLimits()
        self._lock = threading.Lock()
        self._generations: dict[tuple[str, str], GenerationLog] = {}

    def start(
        self,
        owner: str,
        id: str,
        request: Request,
        *,
        clock: RequestClock | None = None,
        n_continued: int = 0,
        additions: Additions = NO_ADDITIONS,
        client: str | None = None,
        tokenizer: Tokenizer | None = None,
    ) -> GenerationLog:
        """Begin a generation; `clock` began with the request, or begins now. `n_continued`: see
        `app.protocol.messages.Generate`. `client`: whose share of the engine it takes from, if not
        its owner's. `tokenizer`: of the request's ids. Raises `InvalidRequest`, and what
        `ClientLimits.submit` raises."""
        texts = continuation_texts(self._engine.tokenizer, request.ids, n_continued)
        generation = GenerationLog(
            owner,
            id,
            clock or RequestClock(),
            self._retention,
            self._evict_finished,
            replace(additions, texts=texts),
        )
        with self._lock:
            if (owner, id) in self._generations:
                raise InvalidRequest(f"there is a generation {id!r} already; use a new id", "id")
            self._generations[owner, id] = generation
        try:
            if n_continued and has_ended(self._engine, request):
                report_ended(self._engine, request, generation.on_event)
            else:
                run = self._client_limits.submit(
                    client or owner, self._engine, request, generation.on_event, tokenizer
                )
                generation.attach(run)
        except BaseException:
            with self._lock:
                del self._generations[owner, id]
            raise
        return generation

    def get(self, owner: str, id: str) -> GenerationLog:
        """Raises `UnknownGenerationError`, also for a generation of another owner."""
        self._evict_finished()
        generation = self._generations.get((owner, id))
        if generation is None:
            raise UnknownGenerationError(
                f"there is no generation {id!r} here: it was never started, or it ended too long "
                "ago to be kept; start it again"
            )
        return generation

    def kept(self) -> tuple[int, int]:
        """Return how many generations are kept, running ones among them, and their bytes."""
        self._evict_finished()
        generations = list(self._generations.values())
        return len(generations), sum(generation.n_bytes for generation in generations)

    def _evict_finished(self) -> None:
        """Drop finished generations past the bounds, oldest first."""
        retention, now = self._retention, time.monotonic()
        with self._lock:
            finished = sorted(
                (generation.finished_at, key)
                for key, generation in self._generations.items()
                if generation.finished_at is not None
            )
            n_left = len(finished)
            bytes_left = sum(self._generations[key].n_bytes for _, key in finished)
            for finished_at, key in finished:
                if (
                    n_left <= retention.n_finished
                    and bytes_left <= retention.finished_bytes
                    and now - finished_at <= retention.finished_seconds
                ):
                    break
                n_left -= 1
                bytes_left -= self._generations.pop(key).n_bytes


def without_stats(event: Event) -> Event:
    match event:
        case Token(stats=stats) if stats is not None:
            return msgspec.structs.replace(event, stats=None)
        case Prefill(stats=stats) if stats:
            return msgspec.structs.replace(event, stats=())
        case Preview(candidates=candidates) if candidates:
            return msgspec.structs.replace(event, candidates=())
    return event
