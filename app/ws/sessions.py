"""Generations and who they belong to: start, update, stop, and everything they said so far.

A `LiveRun` keeps its messages, encoded, in a log numbered by `seq`. Connections do not queue
messages of their own: each reads the log from a cursor, so a page that comes back with `after`
neither loses nor repeats one, and a slow page costs no memory. Only statistics may go: those of
old messages when a log grows past its bound, and those of new ones for a page that is behind.

A generation belongs to the browser session (cookie) that started it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from app.engines import EngineClient, Run
from app.protocol import Generation
from app.shares import Shares
from app.written import is_over, tell_over, written_texts
from gpu import (
    NO_INTERVENTIONS,
    ChangeAt,
    EngineError,
    Interventions,
    InvalidRequest,
    ReachedFrom,
    SamplingParams,
)
from gpu.events import Accepted, Done, Event, Prefill, Queued, Token

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Keeping:
    """How long and how much is kept.

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


class Entry:
    """One message: `full` with statistics (None when it has none, or they were dropped)."""

    __slots__ = ("full", "lean")

    def __init__(self, message: Generation) -> None:
        event = message.event
        lean = msgspec.structs.replace(message, event=without_stats(event))
        self.lean = msgspec.json.encode(lean)
        has_stats = isinstance(event, Token | Prefill) and bool(event.stats)
        self.full = msgspec.json.encode(message) if has_stats else None


class LiveRun:
    """A generation: its log, its followers, its run in the engine. Thread-safe.

    A follower is called, without arguments, when the log has grown.
    """

    def __init__(
        self,
        owner: str,
        id: str,
        clock: RequestClock,
        keeping: Keeping,
        on_done: Callable[[], None],
        texts: tuple[str, ...] = (),
    ) -> None:
        self.owner = owner
        self.id = id
        self._clock = clock
        self._texts = texts
        self.finished_at: float | None = None
        self._keeping = keeping
        self._on_done = on_done
        self._lock = threading.Lock()
        self._log: list[Entry] = []
        self._followers: list[Callable[[], None]] = []
        self._run: Run | None = None
        self._cancelled = False
        self._waiting = True  # in the engine's queue
        self._away: threading.Timer | None = None
        self._left_at = 0.0  # when the last follower went
        self._lean_bytes = 0
        self._stats_bytes = 0
        self._next_to_strip = 0

    @property
    def n_bytes(self) -> int:
        return self._lean_bytes + self._stats_bytes

    @property
    def last_seq(self) -> int:
        return len(self._log)

    def entry(self, seq: int) -> Entry | None:
        """The message `seq` (from 1), or None when it has not been written yet."""
        return self._log[seq - 1] if seq <= len(self._log) else None

    def on_event(self, event: Event) -> None:
        """Take an event of the engine; never blocks for long."""
        with self._lock:
            prepared = None if self._log else self._clock.prepared
            if isinstance(event, Accepted):
                event = msgspec.structs.replace(event, texts=self._texts)
            if isinstance(event, Accepted | Queued):
                self._waiting = event.position > 0
            elif isinstance(event, Prefill | Token):
                self._waiting = False
            seq = len(self._log) + 1
            entry = Entry(Generation(self.id, seq, event, self._clock.now(), prepared))
            self._log.append(entry)
            self._lean_bytes += len(entry.lean)
            self._stats_bytes += len(entry.full or b"")
            self._strip_old_stats()
            followers = tuple(self._followers)
            done = isinstance(event, Done)
            if done:
                self.finished_at = time.monotonic()
                self._stop_waiting()
        for follower in followers:
            follower()
        if done:
            self._on_done()

    def _strip_old_stats(self) -> None:
        while self._stats_bytes > self._keeping.stats_bytes:
            entry = self._log[self._next_to_strip]
            self._stats_bytes -= len(entry.full or b"")
            entry.full = None
            self._next_to_strip += 1

    # ---- followers ---------------------------------------------------------------------------

    def follow(self, follower: Callable[[], None]) -> None:
        with self._lock:
            self._followers.append(follower)
            self._stop_waiting()

    def unfollow(self, follower: Callable[[], None]) -> None:
        """Without a follower, a running generation is cancelled after `away_seconds`, and one that
        waits after `waiting_seconds`."""
        with self._lock:
            self._followers.remove(follower)
            if not self._followers and self.finished_at is None:
                self._left_at = time.monotonic()
                self._wait(self._patience)

    @property
    def _patience(self) -> float:
        away, waiting = self._keeping.away_seconds, self._keeping.waiting_seconds
        return min(away, waiting) if self._waiting else away

    def _wait(self, seconds: float) -> None:
        self._away = threading.Timer(seconds, self._leave)
        self._away.daemon = True
        self._away.start()

    def _stop_waiting(self) -> None:
        if self._away is not None:
            self._away.cancel()
            self._away = None

    def _leave(self) -> None:
        with self._lock:
            if self._followers or self.finished_at is not None:
                return
            left = self._left_at + self._patience - time.monotonic()
            if left > 0:  # it began to write meanwhile
                self._wait(left)
                return
        log.info("generation cancelled: its page stayed away")
        self.cancel()

    # ---- the engine's run --------------------------------------------------------------------

    def started(self, run: Run) -> None:
        with self._lock:
            self._run = run
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
        self, capture: bool | None, changes: dict[str, Any], reach: Interventions | None = None
    ) -> None:
        """Change settings; the engine acknowledges with an `updated` event."""
        run = self._run
        if run is None or self.finished_at is not None:
            raise InvalidRequest("this generation has ended; its settings cannot change any more")
        run.update(capture=capture, reach=reach, **changes)


class Sessions:
    """All generations of all browser sessions."""

    def __init__(
        self, engine: EngineClient, keeping: Keeping, shares: Shares | None = None
    ) -> None:
        self._engine = engine
        self._keeping = keeping
        self._shares = shares or Shares()
        self._lock = threading.Lock()
        self._runs: dict[tuple[str, str], LiveRun] = {}

    def start(
        self,
        owner: str,
        id: str,
        ids: list[int],
        params: SamplingParams,
        capture: bool,
        clock: RequestClock | None = None,
        script: tuple[ChangeAt, ...] = (),
        n_written: int = 0,
        reach: Interventions = NO_INTERVENTIONS,
        reached: tuple[ReachedFrom, ...] = (),
        client: str | None = None,
    ) -> LiveRun:
        """Begin a generation; `clock` began with the request, or begins now. `n_written`: see
        `app.protocol.Generate`. `client`: whose share of the engine it takes from, if not its
        owner's. Raises `InvalidRequest`, and what `Shares.submit` raises."""
        texts = written_texts(self._engine.tokenizer, ids, n_written)
        live = LiveRun(owner, id, clock or RequestClock(), self._keeping, self._forget_old, texts)
        with self._lock:
            if (owner, id) in self._runs:
                raise InvalidRequest(f"there is a generation {id!r} already; use a new id", "id")
            self._runs[owner, id] = live
        try:
            if n_written and is_over(self._engine, ids, params):
                tell_over(self._engine, ids, params, live.on_event)
            else:
                run = self._shares.submit(
                    client or owner,
                    self._engine,
                    ids,
                    params,
                    capture=capture,
                    on_event=live.on_event,
                    script=script,
                    reach=reach,
                    reached=reached,
                )
                live.started(run)
        except BaseException:
            with self._lock:
                del self._runs[owner, id]
            raise
        return live

    def get(self, owner: str, id: str) -> LiveRun:
        """Raises `UnknownGenerationError`, also for a generation of another owner."""
        live = self._runs.get((owner, id))
        if live is None:
            raise UnknownGenerationError(
                f"there is no generation {id!r} here: it was never started, or it ended too long "
                "ago to be kept; start it again"
            )
        return live

    def _forget_old(self) -> None:
        """Drop finished generations past the bounds, oldest first."""
        keeping, now = self._keeping, time.monotonic()
        with self._lock:
            finished = sorted(
                (live.finished_at, key)
                for key, live in self._runs.items()
                if live.finished_at is not None
            )
            n_left = len(finished)
            bytes_left = sum(self._runs[key].n_bytes for _, key in finished)
            for finished_at, key in finished:
                if (
                    n_left <= keeping.n_finished
                    and bytes_left <= keeping.finished_bytes
                    and now - finished_at <= keeping.finished_seconds
                ):
                    break
                n_left -= 1
                bytes_left -= self._runs.pop(key).n_bytes


def without_stats(event: Event) -> Event:
    match event:
        case Token(stats=stats) if stats is not None:
            return msgspec.structs.replace(event, stats=None)
        case Prefill(stats=stats) if stats:
            return msgspec.structs.replace(event, stats=())
    return event
