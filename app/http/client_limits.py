"""Limit on the number of runs per client, so that no client fills the queue alone.

A client is a browser session, or an IP address if there is no cookie. It may have one run for each
slot of the engine, plus half of the queue; the other half stays free for other clients. Paused
runs do not count here, as in the engine (`gpu.places`); all runs of a client, paused ones included,
may be at most twice that number.

Other limits: connections (`app.http.connections`), bodies (`app.http.security`), messages
(`app.protocol.messages`), and what a request may ask of the engine (`gpu.engine.validation`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import flask
import msgspec
from flask import current_app, g

from app.engine_client import EngineClient, OnEvent, Run, Tokenizer
from app.http.cache_salts import Asked, CacheSalts
from gpu import PaceChange, QueueFull, Request
from gpu.events import Done, Event

EXTENSION = "tokenglass_shares"


class ClientLimits:
    """Unfinished runs of each client. Thread-safe.

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
        self._places: dict[str, set[_Place]] = {}

    def submit(
        self,
        client: str,
        engine: EngineClient,
        request: Request,
        on_event: OnEvent,
        tokenizer: Tokenizer | None = None,
    ) -> Run:
        """Call `engine.submit` if the client may have another run, else raise `QueueFull`.
        `tokenizer`: of the request's ids, None if they had none; raises what
        `EngineClient.expect_tokenizer` raises."""
        place = self._take(client, engine, paused=request.pace == 0)
        on_event = self._watch(on_event)

        def release_on_done(event: Event) -> None:
            if isinstance(event, Done):
                self._release(place)  # before `on_event`, which may submit the next run at once
            on_event(event)

        try:
            if tokenizer is not None:
                engine.expect_tokenizer(tokenizer)
            run = engine.submit(self.salts.salted(client, request), release_on_done)
        except BaseException:
            self._release(place)
            raise
        return _CountedRun(run, place, partial(self._pause, place, engine))

    @contextmanager
    def place(self, client: str, engine: EngineClient) -> Iterator[None]:
        """Count work that is no run, such as embeddings, as one. Raises `QueueFull`."""
        place = self._take(client, engine, paused=False)
        try:
            yield
        finally:
            self._release(place)

    def _take(self, client: str, engine: EngineClient, *, paused: bool) -> _Place:
        with self._lock:
            limit = max_runs(engine)
            if not paused:
                self._expect_place(client, limit)
            places = self._places.setdefault(client, set())
            if limit is not None and len(places) >= 2 * limit:
                raise QueueFull(
                    f"you already have {len(places)} generations, including paused ones, the "
                    "limit for one browser or program; stop one, or wait until one ends"
                )
            place = _Place(client, paused)
            places.add(place)
            return place

    def _pause(self, place: _Place, engine: EngineClient, paused: bool) -> None:
        """Note that a run is paused or resumed. Raises `QueueFull` if it may not resume."""
        with self._lock:
            if place.paused and not paused and place in self._places.get(place.client, ()):
                self._expect_place(place.client, max_runs(engine))
            place.paused = paused

    def _expect_place(self, client: str, limit: int | None) -> None:
        """Raise `QueueFull` if a client may have no more running or waiting runs."""
        n_runs = sum(not place.paused for place in self._places.get(client, ()))
        if limit is not None and n_runs >= limit:
            raise QueueFull(
                f"you already have {limit} generations running or waiting, the limit for one "
                "browser or program; stop one, or wait until one ends"
            )

    def _release(self, place: _Place) -> None:
        """Free a place, unless it is free already."""
        with self._lock:
            places = self._places.get(place.client, set())
            places.discard(place)
            if not places:
                self._places.pop(place.client, None)


@dataclass(eq=False, slots=True)
class _Place:
    """Place of a client's run."""

    client: str
    paused: bool


class _CountedRun:
    """Run of a client. `pause(paused)` is told when it is to pause or resume, and may refuse."""

    def __init__(self, run: Run, place: _Place, pause: Callable[[bool], None]) -> None:
        self._run = run
        self._place = place
        self._pause = pause

    def update(self, *, pace: PaceChange | None = None, **changes: Any) -> int:
        """Update the run. Raises what its `update` raises, and `QueueFull`."""
        was_paused = self._place.paused
        if pace is not None and pace.rate is not msgspec.UNSET:
            self._pause(pace.rate == 0)
        try:
            return self._run.update(pace=pace, **changes)
        except BaseException:
            self._place.paused = was_paused
            raise

    def cancel(self) -> None:
        self._run.cancel()


def max_runs(engine: EngineClient) -> int | None:
    """Return how many unpaused runs one client may have; None while the engine is not ready."""
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
    """Return `ClientLimits.submit` for the client of this request and ids of the model of now. It
    may be called later."""
    client_limits: ClientLimits = current_app.extensions[EXTENSION]
    return partial(client_limits.submit, client(), engine, tokenizer=engine.tokenizer)
