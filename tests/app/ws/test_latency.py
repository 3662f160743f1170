"""A token reaches the page's socket soon after the engine had it: nothing in between polls, batches
or waits for a packet to be acknowledged."""

from __future__ import annotations

import re
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from app.engine.supervisor import SupervisedEngine
from app.ws.websocket import WebSocket
from gpu import Request
from gpu.events import Event, Token
from tests.app.conftest import Site, StartSite
from tests.app.fake_engine import FakeEngine
from tests.app.fake_options import FakeOptions
from tests.app.fake_run import FakeRun
from tests.app.page import PageClient, wait_until

N_TOKENS = 20
IDLE_SECONDS = 2.0
MOST_WAKES = 4
"""Times a second at most that a thread wakes up while there is nothing to do: a beat of the engine
and the looks of the server at its clients come about once a second. A machine that is busy makes
them fewer."""
TASKS = Path("/proc/self/task")


class StepByStep(FakeEngine):
    """Engine that stands still after each token until the run is changed."""

    def submit(self, request: Request, on_event: Any) -> FakeRun:
        def stepped(event: Event) -> None:
            on_event(event)
            if isinstance(event, Token):
                self.changed.wait()

        return super().submit(request, stepped)


def load(progress: object) -> StepByStep:
    return StepByStep(FakeOptions(delay=0))


def started(site: Site) -> PageClient:
    """Return a page with a run that has written one token and stands still."""
    page = site.page()
    page.send_message("generate", id="a", prompt="Once", params={"max_tokens": N_TOKENS})
    page.until("token", index=0)
    return page


def test_a_token_is_at_the_page_before_the_next_is_written(start_site: StartSite) -> None:
    page = started(start_site(process=True, load=load))
    for index in range(1, N_TOKENS):
        page.send_message("update", id="a", params={"temperature": index / N_TOKENS})
        page.until("token", index=index)


@pytest.mark.skipif(not TASKS.exists(), reason="counts how often Linux woke up each thread")
def test_nothing_between_the_engine_and_the_page_polls(start_site: StartSite) -> None:
    others = set(threading.enumerate())
    site = start_site(process=True, load=load)
    started(site)
    assert isinstance(site.engine, SupervisedEngine)
    tasks = {
        f"engine {task.name}": task for task in Path(f"/proc/{site.engine.pid}/task").iterdir()
    }
    tasks |= {
        thread.name: TASKS / str(thread.native_id)
        for thread in set(threading.enumerate()) - others
        if "serve_forever" not in thread.name  # it accepts connections, and is not in between
    }
    assert "ws writer" in tasks
    before = {name: wakes(task) for name, task in tasks.items()}
    time.sleep(IDLE_SECONDS)
    often = {name: wakes(task) - before[name] for name, task in tasks.items()}
    assert max(often.values()) <= MOST_WAKES * IDLE_SECONDS, often


def wakes(task: Path) -> int:
    """Return how often a thread has begun to wait, which is how often it woke up."""
    found = re.search(r"^voluntary_ctxt_switches:\s+(\d+)", (task / "status").read_text(), re.M)
    assert found is not None
    return int(found[1])


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
