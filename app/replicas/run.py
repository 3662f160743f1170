"""Run that outlives the engine it began on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from app.engine_client import LostRun, OnEvent, Run, UnavailableError
from gpu import SAMPLING_SETTINGS, Request, ScheduledUpdate
from gpu.events import (
    Accepted,
    Done,
    Event,
    Queued,
    Reason,
    StepTimes,
    Timings,
    Token,
    Updated,
)

LIVE = tuple(setting.name for setting in SAMPLING_SETTINGS if setting.declared.live)
MAX_ENGINES = 4
"""Engines that a run may lose. A request that makes engines crash must not end all of them again
and again."""

BEFORE_FIRST = (
    "cache_n", "cache_moved_n", "prompt_n", "prompt_ms", "prompt_per_second", "queue_ms", "ttft_ms",
)  # fmt: skip
"""Timings of what was before the first token."""


class _TokenTimes:
    """Times of a run's tokens on all its engines. Each engine's timings are those of the tokens
    that it wrote."""

    def __init__(self) -> None:
        self._n = 0
        self._work_ms = self._paced_ms = 0.0  # of the tokens after the first, of all
        # Timings of the engine that wrote the first token, if it is lost.
        self._began: Timings | None = None

    def add(self, times: StepTimes) -> None:
        """Count the next token."""
        self._n += 1
        self._paced_ms += times.paced
        if self._n > 1:
            self._work_ms += times.interval - times.paced

    def lose(self, timings: Timings) -> None:
        """Note the timings of an engine that is lost."""
        if self._n and self._began is None:
            self._began = timings

    def of_all(self, last: Timings) -> Timings:
        """Return the timings of the run. `last`: those of its last engine."""
        began, n_after = self._began or last, max(0, self._n - 1)
        return replace(
            last,
            **{name: getattr(began, name) for name in BEFORE_FIRST},
            predicted_n=self._n,
            predicted_ms=self._work_ms,
            predicted_per_second=n_after / max(self._work_ms, 1e-6) * 1e3,
            tpot_ms=self._work_ms / max(1, n_after),
            paced_ms=self._paced_ms,
        )


class Attempt:
    """Run of a request on one replica."""

    def __init__(self, replica: int, receive: Callable[[Attempt, Event], None]) -> None:
        self.replica = replica
        self.remote: Run | None = None
        self.lost: LostRun | None = None
        self._receive = receive

    def on_event(self, event: Event) -> None:
        """Receive an event of the replica's run."""
        self._receive(self, event)


class ReplicaRun:
    """Run of a request, on one replica at a time; its caller sees one run.

    It keeps what it takes to go on elsewhere: the seed that was drawn, the ids that were written
    and the updates that acted (`Request.n_written`).
    """

    def __init__(
        self,
        request: Request,
        on_event: OnEvent,
        on_ended: Callable[[Attempt], None],
        on_lost: Callable[[ReplicaRun], None],
    ) -> None:
        """`on_ended`: called when an attempt has ended, however; `on_lost`: when the run has to go
        on elsewhere. Neither may block."""
        self.request = request
        self._on_event = on_event
        self._on_ended = on_ended
        self._on_lost = on_lost
        self._lock = threading.Lock()
        self._attempt: Attempt | None = None
        self._lost: LostRun | None = None
        self._n_lost = 0
        self._accepted = self._cancelled = self._eos = self._ended = False
        self._written: list[int] = []
        self._times = _TokenTimes()
        self._updated: list[Updated] = []

    # ---- as its caller uses it ---------------------------------------------------------------

    def update(self, **changes: Any) -> int:
        """Change settings; see `app.engine_client.Run`. Raises UnavailableError while the run is
        between two engines."""
        with self._lock:
            remote = None if self._attempt is None else self._attempt.remote
        if remote is None:
            raise UnavailableError("the text is moving to another engine; try again in a moment")
        return remote.update(**changes)

    def cancel(self) -> None:
        """End the run: at once if it is between two engines, where it may wait for long."""
        with self._lock:
            self._cancelled = True
            remote = None if self._attempt is None else self._attempt.remote
            waits = self._attempt is None and self._lost is not None
        if remote is not None:
            remote.cancel()
        elif waits:
            self.end("cancelled")

    # ---- on a replica ------------------------------------------------------------------------

    def begin(self, replica: int) -> Attempt | None:
        """Return a new attempt on a replica; `placed` must follow if it was submitted. None: the
        run was cancelled between two engines."""
        attempt = Attempt(replica, self._receive)
        with self._lock:
            if self._ended:
                return None
            self._attempt = attempt
        return attempt

    def placed(self, attempt: Attempt, remote: Run) -> None:
        """Note that the replica has accepted the attempt."""
        with self._lock:
            attempt.remote = remote
            cancelled, lost = self._cancelled, attempt.lost
        if lost is not None:  # meanwhile
            self._move(attempt, lost)
        elif cancelled:
            remote.cancel()

    def next_request(self) -> Request:
        """Return the request that goes on where the last attempt ended. Patches that a change has
        dropped are in no later one."""
        set_last = (update.interventions for update in reversed(self._updated))
        now = next((one for one in set_last if one is not None), self.request.interventions)
        last = max((update.index for update in self._updated), default=-1)
        acted = (
            ScheduledUpdate(
                update.index,
                {name: getattr(update.params, name) for name in LIVE},
                update.capture,
                update.interventions,
            )
            for update in self._updated
        )
        coming = (
            replace(update, interventions=update.interventions.with_patches_of(now))
            if update.interventions is not None
            else update
            for update in self.request.updates
            if update.index > last
        )
        return replace(
            self.request,
            ids=[*self.request.ids, *self._written],
            n_written=len(self._written),
            updates=(*acted, *coming),
        )

    def end_if_done(self) -> bool:
        """End the run if nothing can follow what was written; return whether it has ended."""
        params, n_due = self.request.params, 0
        if self._updated:  # tokens before the last change were on their way
            params, n_due = self._updated[-1].params, self._updated[-1].index
        if self._cancelled:
            self.end("cancelled")
        elif self._eos:
            self.end("eos")
        elif len(self._written) >= max(params.max_tokens, n_due):
            self.end("length")
        else:
            return False
        return True

    def end(self, reason: Reason, message: str | None = None) -> None:
        """End the run, which goes on nowhere, unless `cancel` has ended it. `message` of an error;
        None: its engine's."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
        lost = self._lost
        assert lost is not None, "else it ends on its engine"
        if message is None:
            message = lost.message if reason == "error" else ""
        n_prompt, n_written = len(self.request.ids), len(self._written)
        timings = self._times.of_all(lost.timings)
        self._on_event(Done(reason, n_prompt, n_written, timings, message))

    # ---- what the replica says ---------------------------------------------------------------

    def _receive(self, attempt: Attempt, event: Event) -> None:
        match event:
            case LostRun():
                with self._lock:
                    attempt.lost = event
                    placed = attempt.remote is not None
                if placed:
                    self._move(attempt, event)
                return
            case Done():
                self._on_ended(attempt)
                if self._n_lost:
                    event = replace(event, timings=self._times.of_all(event.timings))
            case Accepted():
                number = attempt.replica + 1
                if self._accepted:
                    self._on_event(Queued(event.position, number, event.run))
                    return
                self._accepted = True
                self.request = replace(self.request, params=event.params)
                event = replace(event, engine=number)
            case Token():
                self._times.add(event.times)
                self._written.append(event.id)
                self._eos = event.eos
            case Updated():
                if event in self._updated:
                    return
                self._updated.append(event)
                if event.pace is not UNSET:
                    self.request = replace(self.request, pace=event.pace)
        self._on_event(event)

    def _move(self, attempt: Attempt, lost: LostRun) -> None:
        """Go on elsewhere, unless that was tried too often."""
        self._on_ended(attempt)
        self._lost = lost
        self._n_lost += 1
        self._times.lose(lost.timings)
        with self._lock:
            self._attempt = None
        if self.end_if_done():
            return
        if self._n_lost < MAX_ENGINES:
            self._on_lost(self)
        else:
            self.end("error")
