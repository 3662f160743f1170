"""Replicas that come and go with the load."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from app.engine_client import (
    EngineClient,
    OnEvent,
    ReplicaStatus,
    Run,
    ServedModel,
    UnavailableError,
)
from app.protocol.messages import Status
from app.replicas.engine import ReplicatedEngine
from gpu import EngineStats, Request
from gpu.inspection.requests import Answer, Question

log = logging.getLogger(__name__)

AWAY = Status("loading", "this engine is not needed at the moment")
LOOK_SECONDS = 1.0
GROW_AFTER = 3
SHRINK_AFTER = 60
"""How many looks in a row must find that more engines are needed, or fewer, before one is started
or ended: a start takes seconds, and an end loses a cache. Ray Serve's defaults are 30 and 600 s."""


class ScaledReplica(EngineClient):
    """A replica that is there or away. `make` returns the client of an engine, `remove` frees what
    it had on the cluster."""

    def __init__(
        self, make: Callable[[ServedModel], EngineClient], served: ServedModel,
        remove: Callable[[], None],
    ) -> None:  # fmt: skip
        super().__init__(served.tokenizer, served.path)
        self._make = make
        self._served = served
        self._remove = remove
        self._engine: EngineClient | None = None
        self._status = AWAY

    @property
    def is_here(self) -> bool:
        return self._engine is not None

    def start(self) -> None:
        """Do nothing: `come` starts an engine."""

    def come(self) -> None:
        """Start an engine; returns at once."""
        engine = self._engine = self._make(self._served)
        engine.listen(self._set_state)
        engine.start()

    def leave(self) -> None:
        """End the engine. A run that came meanwhile goes on at another replica."""
        engine, self._engine = self._engine, None
        if engine is not None:
            self._set_state(AWAY)
            engine.close()
            self._remove()
            self._set_state(AWAY)

    def replica_status(self) -> ReplicaStatus:
        return super().replica_status() if self.is_here else ReplicaStatus("away")

    @property
    def stats(self) -> EngineStats | None:
        engine = self._engine
        return None if engine is None else engine.stats

    def submit(self, request: Request, on_event: OnEvent) -> Run:
        return self._required().submit(request, on_event)

    def inspect(self, question: Question, asker: int = 0) -> Future[Answer]:
        return self._required().inspect(question, asker)

    def cancel_questions(self, asker: int) -> None:
        if self._engine is not None:
            self._engine.cancel_questions(asker)

    def switch(self, served: ServedModel) -> None:
        self._served = served
        self.tokenizer, self.path = served.tokenizer, served.path
        if self._engine is not None:
            self._engine.switch(served)

    def reload(self) -> None:
        if self._engine is not None:
            self._engine.reload()

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()

    def _required(self) -> EngineClient:
        if self._engine is None:
            raise UnavailableError(AWAY.message)
        return self._engine


class ScaledEngine(ReplicatedEngine):
    """Several engines, as many as the load wants: from `n_least` up to all of `replicas`."""

    def __init__(
        self,
        replicas: Sequence[ScaledReplica],
        n_least: int,
        close_cluster: Callable[[], None],
        load_for: Callable[..., Callable[..., object]],
    ) -> None:
        super().__init__(replicas, load_for)  # type: ignore[arg-type]
        self._scaled = tuple(replicas)
        self._n_least = n_least
        self._close_cluster = close_cluster
        self._n_grow = self._n_shrink = 0  # looks in a row
        self._ended = threading.Event()
        self._scaler = threading.Thread(target=self._scale, name="scaler", daemon=True)

    @property
    def n_here(self) -> int:
        """Engines that are there or starting."""
        return sum(replica.is_here for replica in self._scaled)

    def start(self) -> None:
        super().start()
        for replica in self._scaled[: self._n_least]:
            replica.come()
        if len(self._scaled) > self._n_least:
            self._scaler.start()

    def close(self) -> None:
        self._ended.set()
        super().close()
        self._close_cluster()

    def _scale(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            try:
                self.look()
            except Exception:
                log.exception("the number of engines could not be changed")

    def look(self) -> None:
        """Compare the engines with the load; start or end one if that was due for some time."""
        hello = self.hello
        if hello is None:
            return
        n_here, n_runs = self.n_here, sum(map(self.n_writing, range(len(self._scaled))))
        wanted = wanted_engines(n_runs, hello.limits.slots, self._n_least, len(self._scaled))
        self._n_grow = self._n_grow + 1 if wanted > n_here else 0
        self._n_shrink = self._n_shrink + 1 if wanted < n_here else 0
        if self._n_grow >= GROW_AFTER:
            self._n_grow = 0
            log.info("%d texts: starting engine %d of %d", n_runs, n_here + 1, len(self._scaled))
            next(replica for replica in self._scaled if not replica.is_here).come()
        if self._n_shrink >= SHRINK_AFTER:
            self._leave_idle()

    def _leave_idle(self) -> None:
        """End an engine that writes nothing, the last one first; none if all write."""
        idle = [i for i, r in enumerate(self._scaled) if r.is_here and not self.n_runs[i]]
        if idle:
            self._n_shrink = 0
            log.info("ending engine %d, which is not needed", idle[-1] + 1)
            self._scaled[idle[-1]].leave()


def wanted_engines(n_runs: int, n_slots: int, least: int, most: int) -> int:
    """Return how many engines of `n_slots` texts each can write `n_runs` texts without a queue."""
    return min(most, max(least, math.ceil(n_runs / n_slots)))
