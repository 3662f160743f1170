"""The real engine's process is killed at random moments while four pages write: each is notified at
once, and continues with the tokens that it would have had.

No timeout that would notice a process without a sign of life runs out here. So a page that is told
was told because the process died. How soon that is depends on the machine too, so there is a limit
only in the slow test, which runs alone.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.app.engine.processes import engine_pids, has_exited, wait_exited
from tests.app.page import PageClient
from tests.app.test_server import Server

N_TOKENS = 100
TOLD_WITHIN_S = 1.0
NEVER_S = "100000"
BACK_WITHIN_S = 90.0
"""Limit for a restart: a second or two on a quiet machine, more beside other tests."""
MEMORY_BYTES = 24e6
"""The server keeps the messages of 64 finished runs; a tenth of a megabyte each."""
FEW = [pytest.mark.timeout(900)]
MANY = [pytest.mark.slow, pytest.mark.timeout(100 * BACK_WITHIN_S)]
"""Every wait has its own limit. Beside other work a hundred restarts take longer than 900 s."""
PARAMS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.9, "top_p": 0.95, "seed": 11},
    {"temperature": 1.0, "top_k": 40, "repetition_penalty": 1.2, "seed": 2**53 + 7},
    {"temperature": 1.4, "min_p": 0.02, "seed": 5},
)
PROMPTS = ("Once upon a time", "The fox", "Mia had a red ball. One day", "Far away")

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="looks into /proc")


class Writer(threading.Thread):
    """Page that runs the same text again and again, and continues it by ids, index and seed
    whenever the engine dies."""

    def __init__(self, port: int, number: int) -> None:
        super().__init__(daemon=True)
        self._page = PageClient(port)
        self._params = {**PARAMS[number], "ignore_eos": True}
        self._prompt = PROMPTS[number]
        self._n_runs = 0
        self.ready = False
        self.ids: list[int] = []
        self.reference: list[int] | None = None
        self.told: list[float] = []  # when: that the engine restarts, or that a run was lost
        self.n_lost = self.n_same = self.n_tokens = 0
        self.enough = False
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.enough or self.reference is None:
                ids = self._text()
                if self.reference is None:
                    self.reference = ids
                assert ids == self.reference
                self.n_same += 1
        except BaseException as error:
            self.failure = error

    def _text(self) -> list[int]:
        prompt: list[int] = []
        written: list[int] = []
        while len(written) < N_TOKENS:
            while not self.ready:
                self._hear(self._page.next(BACK_WITHIN_S))
            params = {**self._params, "max_tokens": N_TOKENS - len(written)}
            if prompt:
                params["first_index"] = len(written)
                given = {"ids": prompt + written, "written": len(written)}
            else:
                given = {"prompt": self._prompt}
            prompt += self._run(written, params=params, **given)[len(prompt) :]
        return written

    def _run(self, text: list[int], **request: Any) -> list[int]:
        """Append what a run writes to `text`; return the ids it continued from."""
        self._n_runs += 1
        id, before, n_before = f"run{self._n_runs}", [], len(text)
        self._page.send_message("generate", id=id, capture=False, **request)
        while True:
            message = self._page.next(BACK_WITHIN_S)
            self._hear(message)
            event = message.get("event", {"type": message["type"]})
            match event["type"]:
                case "accepted":
                    before = [token["id"] for token in event["prompt"]]
                    before = before[: len(before) - n_before]
                case "token":
                    assert event["index"] == len(text) - n_before
                    text.append(event["id"])
                    self.n_tokens += 1
                case "done":
                    if event["reason"] == "error":
                        assert event["message"] == "the engine stopped"
                        assert event["completion_tokens"] == len(text) - n_before
                        self.told.append(time.monotonic())
                        self.n_lost += 1
                        self.ready = False
                    return before
                case "error":
                    assert message["code"] == "unavailable", message
                    self.ready = False
                    return before

    def _hear(self, message: dict[str, Any]) -> None:
        if message["type"] == "status":
            self.ready = message["state"] == "ready"
            if message["state"] == "restarting":
                self.told.append(time.monotonic())


def wait_until(holds: Callable[[], bool], writers: list[Writer], what: str) -> None:
    deadline = time.monotonic() + BACK_WITHIN_S
    while not holds():
        for writer in writers:
            if writer.failure is not None:
                raise writer.failure
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


def held(pid: int) -> tuple[int, int]:
    """Return the numbers of descriptors and threads of a process."""
    return len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task"))


def resident(pid: int) -> int:
    """Return the resident bytes of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("TOKENGLASS_CACHE", os.devnull)  # no place to keep tunings: none is measured
    server = Server("--bundled", "--at-once", "1000000", "--silent", NEVER_S)
    yield server
    if server.process.poll() is None:
        os.killpg(server.process.pid, signal.SIGKILL)
    server.process.communicate()


def next_moment(chance: random.Random, writers: list[Writer], server: Server) -> None:
    """Wait for a moment at which the process exists: while loading, at any time, or while the pages
    write."""
    if chance.random() < 0.15:
        wait_until(lambda: bool(engine_pids(server.process.pid)), writers, "no process was started")
        time.sleep(chance.uniform(0.0, 0.6))
        return
    wait_until(lambda: all(writer.ready for writer in writers), writers, "it did not come back")
    if chance.random() < 0.3:
        time.sleep(chance.uniform(0.0, 1.0))
        return
    writer, n = chance.choice(writers), chance.randrange(1, 60)
    enough = writer.n_tokens + n
    wait_until(lambda: writer.n_tokens >= enough, writers, f"{n} tokens were not written")


def kill(writers: list[Writer], server: Server) -> float:
    """Kill the engine; return the seconds until every page was notified."""
    (pid,) = engine_pids(server.process.pid)
    heard = [len(writer.told) for writer in writers]
    began = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    wait_until(
        lambda: all(len(w.told) > n for w, n in zip(writers, heard, strict=True)),
        writers,
        "a page was not told",
    )
    wait_exited(pid, BACK_WITHIN_S)
    return max(w.told[n] for w, n in zip(writers, heard, strict=True)) - began


@pytest.mark.ci
@pytest.mark.parametrize(
    ("n_kills", "told_within"),
    [pytest.param(3, BACK_WITHIN_S, marks=FEW), pytest.param(100, TOLD_WITHIN_S, marks=MANY)],
)
def test_every_text_goes_on_as_it_would_have(
    server: Server, n_kills: int, told_within: float
) -> None:
    chance = random.Random(n_kills)
    port = int(server.line("http://127.0.0.1:([0-9]+)/"))
    pid = server.process.pid
    writers = [Writer(port, number) for number in range(4)]
    for writer in writers:
        writer.start()
    wait_until(lambda: all(w.reference is not None for w in writers), writers, "no text was whole")
    before, memory = held(pid), 0
    seconds: list[float] = []
    for number in range(n_kills):
        next_moment(chance, writers, server)
        seconds.append(kill(writers, server))
        print(f"kill {number}: every page was told within {1000 * seconds[-1]:.0f} ms")
        if number == n_kills // 4:
            memory = resident(pid)
    assert max(seconds) < told_within, f"pages were told after {seconds} s"
    for writer in writers:
        writer.enough = True
    wait_until(lambda: not any(writer.is_alive() for writer in writers), writers, "no end")
    for writer in writers:
        if writer.failure is not None:
            raise writer.failure
    assert sum(writer.n_lost for writer in writers) > n_kills, "few were interrupted"
    assert all(writer.n_same > 1 for writer in writers)
    print(f"{[w.n_lost for w in writers]} runs lost, {[w.n_same for w in writers]} texts the same")
    assert held(pid) == before
    grown = resident(pid) - memory
    print(f"memory: {memory / 1e6:.1f} MB, then {grown / 1e6:+.1f} MB")
    assert grown < MEMORY_BYTES
    engines = engine_pids(pid)
    assert len(engines) == 1
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(10) == 0
    assert all(has_exited(engine) for engine in engines)
