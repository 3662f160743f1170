"""Limit on the number of runs per client, so that no client fills the queue alone.

A client is a browser session, or an IP address if there is no cookie. It may have one run for each
slot of the engine, plus half of the queue; the other half stays free for other clients.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import flask
from flask import current_app, g

from app.engine.client import EngineClient, OnEvent, Run
from app.http.cache_salts import Asked, CacheSalts
from gpu import QueueFull, Request
from gpu.events import Done, Event

EXTENSION = "tokenglass_shares"


class ClientLimits:
    """Number of unfinished runs of each client. Thread-safe.

    watch  gets the receiver of each run's events and returns the one to use: it sees all events
    salts  of the runs
    """

    def __init__(
        self,
        watch: Callable[[OnEvent], OnEvent] = lambda on_event: on_event,
        salts: CacheSalts | None = None,
    ) -> None:
        self._watch = watch
        self.salts = salts or CacheSalts()
        self._lock = threading.Lock()
        self._n_runs: Counter[str] = Counter()

    def submit(self, client: str, engine: EngineClient, request: Request, on_event: OnEvent) -> Run:
        """Call `engine.submit` if the client may have another run, else raise `QueueFull`."""
        self._acquire(client, engine)
        slot = _RunSlot(self, client)
        on_event = self._watch(on_event)

        def release_on_done(event: Event) -> None:
            if isinstance(event, Done):
                slot.release()  # before `on_event`, which may submit the next run at once
            on_event(event)

        try:
            return engine.submit(self.salts.salted(client, request), release_on_done)
        except BaseException:
            slot.release()
            raise

    @contextmanager
    def place(self, client: str, engine: EngineClient) -> Iterator[None]:
        """Count work that is no run, such as embeddings, as one. Raises `QueueFull`."""
        self._acquire(client, engine)
        try:
            yield
        finally:
            self.release(client)

    def _acquire(self, client: str, engine: EngineClient) -> None:
        with self._lock:
            limit = max_runs(engine)
            if limit is not None and self._n_runs[client] >= limit:
                raise QueueFull(
                    f"you already have {limit} generations running or waiting, the limit for one "
                    "browser or program; stop one, or wait until one ends"
                )
            self._n_runs[client] += 1

    def release(self, client: str) -> None:
        """Count one run fewer."""
        with self._lock:
            self._n_runs[client] -= 1
            if not self._n_runs[client]:
                del self._n_runs[client]


class _RunSlot:
    """One run counted against a client's limit. `release` has an effect once."""

    def __init__(self, client_limits: ClientLimits, client: str) -> None:
        self._client_limits = client_limits
        self._client = client
        self._lock = threading.Lock()
        self._held = True

    def release(self) -> None:
        with self._lock:
            held, self._held = self._held, False
        if held:
            self._client_limits.release(self._client)


def max_runs(engine: EngineClient) -> int | None:
    """Return the number of runs one client may have; None while the engine is not ready."""
    if engine.hello is None:
        return None
    limits = engine.hello.limits
    return limits.slots + (limits.queue + 1) // 2


def client() -> str:
    """Return the client of this request: its browser session, else its IP address."""
    return str(g.get("session") or flask.request.remote_addr)


def salted(asked: Asked) -> Asked:
    """Return `CacheSalts.salted` for the client of this request."""
    client_limits: ClientLimits = current_app.extensions[EXTENSION]
    return client_limits.salts.salted(client(), asked)


def place(engine: EngineClient) -> AbstractContextManager[None]:
    """Return `ClientLimits.place` for the client of this request."""
    client_limits: ClientLimits = current_app.extensions[EXTENSION]
    return client_limits.place(client(), engine)


def submitter(engine: EngineClient) -> Callable[[Request, OnEvent], Run]:
    """Return `ClientLimits.submit` for the client of this request. It may be called later."""
    client_limits: ClientLimits = current_app.extensions[EXTENSION]
    return partial(client_limits.submit, client(), engine)
