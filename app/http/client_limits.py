"""Limit on the runs that one client may have at once, so that no client fills the queue alone.

A client is a browser session, or an address where there is no cookie. It may have one run for each
slot of the engine, plus half of the queue; the other half stays free for other clients.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

from flask import current_app, g, request

from app.engines import EngineClient, OnEvent, Run
from gpu import QueueFull, SamplingParams
from gpu.events import Done, Event

EXTENSION = "tokenglass_shares"


class Shares:
    """Number of unfinished runs of each client. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._n_runs: Counter[str] = Counter()

    def submit(
        self,
        client: str,
        engine: EngineClient,
        ids: list[int],
        params: SamplingParams,
        *,
        on_event: OnEvent,
        **options: Any,
    ) -> Run:
        """Call `engine.submit` if the client may have another run, else raise `QueueFull`."""
        self._take(client, engine)
        share = _Share(self, client)

        def told(event: Event) -> None:
            if isinstance(event, Done):
                share.give_back()  # first: who hears of the end may ask for the next at once
            on_event(event)

        try:
            return engine.submit(ids, params, on_event=told, **options)
        except BaseException:
            share.give_back()
            raise

    def _take(self, client: str, engine: EngineClient) -> None:
        with self._lock:
            most = most_runs(engine)
            if most is not None and self._n_runs[client] >= most:
                raise QueueFull(
                    f"{most} generations of yours are running or waiting, which is the most that "
                    "one browser or program may have here; wait for one to end"
                )
            self._n_runs[client] += 1

    def give_back(self, client: str) -> None:
        """Count one run fewer."""
        with self._lock:
            self._n_runs[client] -= 1
            if not self._n_runs[client]:
                del self._n_runs[client]


class _Share:
    """Share of one run, given back once."""

    def __init__(self, shares: Shares, client: str) -> None:
        self._shares = shares
        self._client = client
        self._lock = threading.Lock()
        self._held = True

    def give_back(self) -> None:
        with self._lock:
            held, self._held = self._held, False
        if held:
            self._shares.give_back(self._client)


def most_runs(engine: EngineClient) -> int | None:
    """Return how many runs one client may have; None while there is no engine to ask."""
    if engine.hello is None:
        return None
    limits = engine.hello.limits
    return limits.active + (limits.queue + 1) // 2


def client() -> str:
    """Return the client of this request: its browser session, else its address."""
    return str(g.get("session") or request.remote_addr)


def submit(engine: EngineClient, ids: list[int], params: SamplingParams, **options: Any) -> Run:
    """Call `Shares.submit` for the client of this request."""
    shares: Shares = current_app.extensions[EXTENSION]
    return shares.submit(client(), engine, ids, params, **options)
