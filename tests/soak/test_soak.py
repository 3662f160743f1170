"""32 clients that come, go, stall and vanish against one server with too few KV blocks.

`make soak` runs it for five minutes, `pytest --soak-seconds N` for N seconds.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.gpu.models import random_llama
from tests.serving import END_SECONDS, LOAD_SECONDS, ROOT
from tests.soak.clients import VISITS, Ask, Busy, http_whole
from tests.soak.server import COUNT_SECONDS

N_CLIENTS = 32
SETTINGS = {"dtype": "f32", "context": 512, "max_num_seqs": 32, "kv_memory": 1, "queue": 32}
"""1 MiB holds 51 blocks of this model; 32 texts need up to 500."""
N_ASKS = 16
N_ROUNDS = 6
SETTLE_SECONDS = 30.0
"""Time until the server has noticed that the last clients are gone."""
MOST_GROWTH = 24 << 20
"""Bytes by which a process may grow from the middle to the end: the allocator's, not a leak's. A
leak of 1 KiB a token would be several times as much in five minutes."""
FAULT = re.compile(r"traceback|error|exception|failed|warning", re.IGNORECASE)

pytestmark = pytest.mark.skipif(not Path("/proc").exists(), reason="memory is read from /proc")


@dataclass
class Server:
    """A running server. `lines`: what it printed."""

    process: subprocess.Popen[str]
    counts: Path
    lines: list[str] = field(default_factory=list)
    port: int = 0

    def metrics(self) -> dict[str, float]:
        """Return the metrics without labels, by their name."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics") as response:
            text = response.read().decode()
        found = re.findall(r"^tokenglass:(\w+) (\S+)$", text, re.MULTILINE)
        return {name: float(value) for name, value in found}

    def snapshot(self) -> Snapshot:
        engine = json.loads(self.counts.read_text("utf-8"))
        pids = self.process.pid, int(engine["pid"])
        return Snapshot(
            {name: _resident(pid) for name, pid in zip(("server", "engine"), pids, strict=True)},
            len(os.listdir(f"/proc/{pids[0]}/task")),
            len(os.listdir(f"/proc/{pids[0]}/fd")),
            engine["objects"],
        )


@dataclass(frozen=True)
class Snapshot:
    """Resident bytes of each process, threads and descriptors of the server, GPU objects."""

    resident: dict[str, int]
    n_threads: int
    n_descriptors: int
    objects: dict[str, int]

    def waits_like(self, other: Snapshot) -> bool:
        """Return whether the server has no more threads and descriptors than in `other`."""
        fewer_threads = self.n_threads <= other.n_threads
        return fewer_threads and self.n_descriptors <= other.n_descriptors


@dataclass
class Record:
    """Outcome of all visits. `faults`: what should not have happened."""

    visits: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


@pytest.mark.ci
def test_a_server_outlives_clients_of_every_kind(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    seconds = float(pytestconfig.getoption("soak_seconds"))
    with started(tmp_path) as server:
        asks = draw_asks(random.Random(0))
        alone = {ask: http_whole(server.port, ask, random.Random(0)) for ask in asks}
        for visit in VISITS:  # all threads and plans that such visits need
            visit(server.port, asks[0], random.Random(1))
        wait_until(lambda: is_idle(server), "the server is idle")
        before = server.snapshot()

        record, middle = soak(server, alone, seconds)
        wait_until(lambda: is_idle(server), "all blocks are free and nothing runs or waits")
        wait_until(lambda: server.snapshot().waits_like(before), "threads and sockets are gone")
        after, metrics = server.snapshot(), server.metrics()
        rounds = rounds_of_visits(server, asks[0])
        print(dict(record.visits), metrics, before, middle, after, *rounds, sep="\n")

        assert record.faults == []
        assert all(record.visits[visit.__name__] for visit in VISITS), record.visits
        assert metrics["num_preemptions_total"] > 0, "the cache was to be too small"
        for process, n_bytes in after.resident.items():
            assert n_bytes - middle.resident[process] < MOST_GROWTH, (process, middle, after)
        assert is_settled(rounds), "rounds whose plans were all recorded before add nothing"
        assert [line for line in server.lines if FAULT.search(line)] == []


def rounds_of_visits(server: Server, ask: Ask) -> list[dict[str, int]]:
    """Return the GPU objects of an idle server before and after rounds of all visits, until they
    are settled or N_ROUNDS were done. A visit that overlaps the one before it may be the first to
    need a plan; a leak would go on."""
    found: list[dict[str, int]] = []
    while len(found) <= N_ROUNDS and not is_settled(found):
        if found:
            for visit in VISITS:
                visit(server.port, ask, random.Random(1))
            wait_until(lambda: is_idle(server), "the server is idle after a round")
        time.sleep(2 * COUNT_SECONDS)  # until the objects are counted that an idle engine has
        found.append(server.snapshot().objects)
    return found


def is_settled(rounds: list[dict[str, int]]) -> bool:
    """Return whether the last two rounds added no GPU object."""
    return len(rounds) > 2 and rounds[-1] == rounds[-2] == rounds[-3]


def soak(server: Server, alone: dict[Ask, str | None], seconds: float) -> tuple[Record, Snapshot]:
    """Let the clients come for `seconds`; return what came of it, and a snapshot of the middle."""
    record = Record()
    end = time.monotonic() + seconds
    clients = [
        threading.Thread(target=visit_until, args=(end, server.port, alone, seed, record))
        for seed in range(N_CLIENTS)
    ]
    for client in clients:
        client.start()
    time.sleep(seconds / 2)
    middle = server.snapshot()
    for client in clients:
        client.join()
    return record, middle


def draw_asks(draw: random.Random) -> list[Ask]:
    """Return requests of several lengths; some prompts begin as others do."""
    words = ["once", "upon", "a", "time", "the", "fox", "found", "an", "old", "lantern", "and"]
    texts = [
        " ".join(draw.choice(words) for _ in range(draw.choice((3, 10, 25)))) for _ in range(8)
    ]
    return [
        Ask(
            prompt=f"{draw.choice(texts)} {draw.choice(words)}",
            max_tokens=draw.choice((5, 40, 40, 150)),
            seed=i,
            temperature=draw.choice((0.0, 0.8, 1.2)),
            capture=draw.random() < 0.3,
        )
        for i in range(N_ASKS)
    ]


def visit_until(
    end: float, port: int, alone: dict[Ask, str | None], seed: int, record: Record
) -> None:
    """Visit the server again and again; a text that was read to its end must be the one that the
    request gives alone."""
    draw = random.Random(seed)
    while time.monotonic() < end:
        ask, visit = draw.choice(list(alone)), draw.choice(VISITS)
        try:
            text = visit(port, ask, draw)
        except Busy:
            record.visits["busy"] += 1
            time.sleep(draw.uniform(0.05, 0.3))
            continue
        except Exception as error:
            record.faults.append(f"{visit.__name__}: {error!r}")
            continue
        record.visits[visit.__name__] += 1
        if text is not None and text != alone[ask]:
            record.faults.append(f"{visit.__name__} {ask}: {text!r}, alone {alone[ask]!r}")


def is_idle(server: Server) -> bool:
    metrics = server.metrics()
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    return all(metrics[name] == 0 for name in names)


@contextmanager
def started(folder: Path) -> Iterator[Server]:
    """Run `tests.soak.server` until the block ends."""
    counts = folder / "counts.json"
    command = [sys.executable, "-m", "tests.soak.server", random_llama.folder("odd100_tied")]
    process = subprocess.Popen(
        [*map(str, command), str(counts), json.dumps(SETTINGS)],
        cwd=ROOT,
        env={**os.environ, "TOKENGLASS_CACHE": os.devnull},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    server = Server(process, counts)
    threading.Thread(target=_read, args=(server,), daemon=True).start()
    try:
        wait_until(lambda: bool(server.port) and counts.exists(), "it is ready", LOAD_SECONDS)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()


def _read(server: Server) -> None:
    for line in server.process.stdout or ():
        server.lines.append(line)
        print(line, end="")
        if line.startswith("Ready"):
            found = re.search(r"http://[\d.]+:(\d+)/", "".join(server.lines))
            server.port = int(found[1]) if found else 0


def wait_until(condition: Callable[[], bool], what: str, seconds: float = SETTLE_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"after {seconds} s still not: {what}"
        time.sleep(0.1)


def _resident(pid: int) -> int:
    pages = Path(f"/proc/{pid}/statm").read_text("utf-8").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
