"""A token reaches the page's socket soon after the engine had it: nothing in between polls, batches
or waits for a packet to be acknowledged."""

from __future__ import annotations

import socket
import statistics
import time
from typing import Any

import msgspec
import pytest

from app.ws.websocket import WebSocket
from gpu import Request
from gpu.events import Event, Token
from tests.app.conftest import StartSite
from tests.app.fake_engine import FakeEngine
from tests.app.fake_options import FakeOptions
from tests.app.fake_run import FakeRun
from tests.app.page import PageClient, wait_until

N_TOKENS = 120
MEDIAN_MS = 5.0
"""Largest median latency in ms; on a quiet machine it is under 1, half of it in this client."""
N_ROUNDS = 6
"""Number of attempts: a busy machine makes some runs late, polling in the server all of them."""


class Stamping(FakeEngine):
    """Engine that records when each token was ready, in ms of the clock that processes share."""

    def submit(self, request: Request, on_event: Any) -> FakeRun:
        def stamped(event: Event) -> None:
            if isinstance(event, Token):
                times = msgspec.structs.replace(event.times, interval=time.monotonic() * 1e3)
                event = msgspec.structs.replace(event, times=times)
            on_event(event)

        return super().submit(request, stamped)


def load(progress: object) -> Stamping:
    return Stamping(FakeOptions(delay=0.008))


def test_a_token_is_at_the_page_within_milliseconds(start_site: StartSite) -> None:
    site = start_site(process=True, load=load)
    medians: list[float] = []
    while len(medians) < N_ROUNDS and not any(ms < MEDIAN_MS for ms in medians):
        medians.append(statistics.median(_latencies(site.page())))
    assert 0 < min(medians) < MEDIAN_MS, medians


def _latencies(page: PageClient) -> list[float]:
    """Return the milliseconds from the engine to this client, of every token of a run."""
    page.send_message("generate", id="a", prompt="Once", params={"max_tokens": N_TOKENS})
    found = []
    for index in range(N_TOKENS):
        token = page.until("token", index=index)
        found.append(time.monotonic() * 1e3 - token["times"]["interval"])
    return found


def test_small_packets_do_not_wait_for_acknowledgements(
    start_site: StartSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nagle's algorithm holds a token back until the one before is acknowledged: up to 40 ms."""
    sockets = []

    class Seen(WebSocket):
        def receive(self, timeout: float | None = None) -> str | bytes | None:
            sockets.append(self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            return super().receive(timeout)

    monkeypatch.setattr("app.ws.page_connection.WebSocket", Seen)
    start_site().page()
    wait_until(lambda: sockets)  # its reader may start after it was told that all is ready
    assert set(sockets) == {1}
