"""Engine client that routes requests to replicas, and moves the runs of one that is lost.

Each replica is an engine with a KV cache of its own. A request goes to the replica that has most of
its prefix cached (`app.replicas.router`) and stays there. If the replica's process ends, its runs
go on at another one, which computes their tokens again: the ids are the same.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import msgspec

from app.engine_client import (
    EngineClient,
    Load,
    OnEvent,
    ReplicaStatus,
    ServedModel,
    UnavailableError,
    describe_unavailable,
    one_of,
)
from app.protocol.messages import Hello, Status
from app.replicas.router import PrefixRouter, ReplicaLoad
from app.replicas.run import Attempt, ReplicaRun
from gpu import EngineClosed, EngineError, EngineStats, QueueFull, Request
from gpu.inspection.requests import Answer, Question

log = logging.getLogger(__name__)

RESUME_SECONDS = 60.0
"""Longest time that a run waits for an engine that can go on with it: a process starts in that
time."""
RETRY_SECONDS = 0.2
N_RESUMERS = 4

LoadFor = Callable[[Load, int], Load]
"""Returns the function that loads a replica, of the one that loads the model, and its number."""


class ReplicatedEngine(EngineClient):
    """Engines of one model. `load_for`: see `LoadFor`."""

    def __init__(
        self, replicas: Sequence[EngineClient], load_for: LoadFor = lambda load, replica: load
    ) -> None:
        super().__init__(replicas[0].tokenizer, replicas[0].path)
        self.replicas = tuple(replicas)
        self._load_for = load_for
        self._router = PrefixRouter(len(replicas))
        self._lock = threading.Lock()  # of the router and the counts
        self.n_runs = [0] * len(replicas)
        """Runs of each replica."""
        self._asked: dict[int, int] = {}  # the replica that an asker asked last
        self._n_questions = [0] * len(replicas)  # of each replica, without an answer yet
        self._merging = threading.RLock()
        self._switching = False
        self._n_switches = 0  # runs of an earlier model do not go on
        self._closing = threading.Event()
        self._resumers = ThreadPoolExecutor(N_RESUMERS, "resume")

    # ---- state -------------------------------------------------------------------------------

    def start(self) -> None:
        for number, replica in enumerate(self.replicas):
            replica.listen(self._listener(number))
            replica.start()

    def _listener(self, number: int) -> Callable[[Status, Hello | None], None]:
        def on_state(status: Status, hello: Hello | None) -> None:
            if hello is None:
                with self._lock:
                    self._router.forget(number)
            if status.state == "failed":
                n = len(self.replicas)
                log.error("engine %d of %d has failed: %s", number + 1, n, status.message)
            self._merge()

        return on_state

    def _merge(self) -> None:
        """Publish the state of all: ready if any is, else that of the one that is nearest to it;
        those that are away count only if all are."""
        with self._merging:
            if self._switching:
                return
            ready = [replica for replica in self.replicas if replica.hello is not None]
            if not ready:
                here = [r for r in self.replicas if r.replica_status().state != "away"]
                self._set_state(min((r.status for r in here or self.replicas), key=_distance))
            elif self._hello is None:
                self.tokenizer, self.path = ready[0].tokenizer, ready[0].path
                self._set_state(Status("ready", "ready"), ready[0].hello)

    @property
    def stats(self) -> EngineStats | None:
        """Sums of all replicas."""
        known = [replica.stats for replica in self.replicas]  # None once a process has ended
        found = [msgspec.structs.astuple(stats) for stats in known if stats is not None]
        return EngineStats(*map(sum, zip(*found, strict=True))) if found else None

    def replica_statuses(self) -> Sequence[ReplicaStatus]:
        return [replica.replica_status() for replica in self.replicas]

    def replica(self, number: int) -> EngineClient:
        return one_of(self.replicas, number)

    # ---- runs --------------------------------------------------------------------------------

    def submit(self, request: Request, on_event: OnEvent) -> ReplicaRun:
        self.require_ready()
        on_lost = partial(self._resume_later, self._n_switches)
        run = ReplicaRun(request, on_event, self._note_ended, on_lost)
        self._place(run)
        return run

    def _place(self, run: ReplicaRun) -> None:
        """Submit a run to the best replica that takes it. Raises what `EngineClient.submit` raises
        if none does."""
        request = run.next_request()
        refused: EngineError = UnavailableError(describe_unavailable(self.status))
        for number in self._order(request):
            attempt = run.begin(number)
            if attempt is None:
                return
            self._note_begun(number, request)
            try:
                remote = self.replicas[number].submit(request, attempt.on_event)
            except (QueueFull, UnavailableError) as error:
                self._note_ended(attempt)
                refused = error
            except BaseException:
                self._note_ended(attempt)
                raise
            else:
                run.placed(attempt, remote)
                return
        raise refused

    def _order(self, request: Request) -> list[int]:
        """Return the replicas that are ready, the best for a request first."""
        with self._lock:
            hellos = {i: hello for i, r in enumerate(self.replicas) if (hello := r.hello)}
            loads = {i: ReplicaLoad(self.n_writing(i), h.limits.slots) for i, h in hellos.items()}
            return self._router.order(request.ids, loads, request.cache_salt)

    def n_writing(self, number: int) -> int:
        """Return how many runs of a replica write or wait: those that are paused are no load."""
        stats = self.replicas[number].stats
        return max(0, self.n_runs[number] - (stats.n_paused if stats is not None else 0))

    def _note_begun(self, number: int, request: Request) -> None:
        hello = self.replicas[number].hello
        with self._lock:
            self.n_runs[number] += 1
            if hello is not None:
                n_blocks = hello.limits.n_blocks // max(1, len(hello.limits.kv_groups))
                self._router.note_sent(number, request.ids, n_blocks, request.cache_salt)

    def _note_ended(self, attempt: Attempt) -> None:
        with self._lock:
            self.n_runs[attempt.replica] -= 1

    def _resume_later(self, n_switches: int, run: ReplicaRun) -> None:
        deadline = time.monotonic() + RESUME_SECONDS
        try:
            self._resumers.submit(self._resume, run, n_switches, deadline)
        except RuntimeError:  # the server is shutting down
            run.end("error")

    def _resume(self, run: ReplicaRun, n_switches: int, deadline: float) -> None:
        """Go on with a run whose engine is gone, as soon as an engine takes it."""
        while not self._closing.is_set() and self._n_switches == n_switches:
            if run.end_if_done():
                return
            try:
                self._place(run)
                return
            except (UnavailableError, QueueFull) as error:
                if time.monotonic() > deadline:
                    run.end("error", str(error))
                    return
            except EngineError as error:
                run.end("error", str(error))
                return
            self._closing.wait(RETRY_SECONDS)
        run.end("error")

    # ---- questions ---------------------------------------------------------------------------

    def inspect(self, question: Question, asker: int = 0) -> Future[Answer]:
        self.require_ready()
        number = self._answerer(question, asker)
        answer = self.replicas[number].inspect(question, asker)
        with self._lock:
            self._n_questions[number] += 1
        answer.add_done_callback(lambda answer: self._note_answered(number))
        return answer

    def _note_answered(self, number: int) -> None:
        with self._lock:
            self._n_questions[number] -= 1

    def _answerer(self, question: Question, asker: int) -> int:
        """Return the replica to ask: the one that has most of the question's tokens cached; of
        those that have as many, the one that this asker asked last, else the one with the fewest
        questions."""
        ids: list[int] = getattr(question, "ids", [])
        with self._lock:
            ready = [i for i, replica in enumerate(self.replicas) if replica.hello is not None]
            if not ready:
                raise UnavailableError(describe_unavailable(self.status))
            last = self._asked.get(asker)
            n_questions = self._n_questions

            def rank(i: int) -> tuple[int, bool, int]:
                n_cached = self._router.n_cached(i, ids, question.cache_salt)
                return n_cached, i == last, -n_questions[i]

            best = max(ready, key=rank)
            self._asked[asker] = best
            return best

    def cancel_questions(self, asker: int) -> None:
        with self._lock:
            self._asked.pop(asker, None)
        for replica in self.replicas:
            with contextlib.suppress(EngineClosed):
                replica.cancel_questions(asker)

    # ---- the model and the end ---------------------------------------------------------------

    def switch(self, served: ServedModel) -> None:
        def switch_one(number: int, replica: EngineClient) -> None:
            replica.switch(replace(served, load=self._load_for(served.load, number)))

        self._switch_each(switch_one)

    def reload(self) -> None:
        self._switch_each(lambda number, replica: replica.reload())

    def _switch_each(self, switch_one: Callable[[int, EngineClient], None]) -> None:
        with self._merging:
            self._switching = True
            self._n_switches += 1
            self._set_state(Status("loading", "ending the model before", 0.0))
        try:
            for number, replica in enumerate(self.replicas):
                switch_one(number, replica)
        finally:
            with self._merging:
                self._switching = False
            self._merge()

    def close(self) -> None:
        self._closing.set()
        self._resumers.shutdown(wait=False)
        closers = [threading.Thread(target=replica.close) for replica in self.replicas]
        for closer in closers:
            closer.start()
        for closer in closers:
            closer.join()


def _distance(status: Status) -> tuple[int, float]:
    """Return how far an engine is from being ready."""
    states = ("ready", "loading", "restarting", "failed")
    return states.index(status.state), -(status.progress or 0.0)
