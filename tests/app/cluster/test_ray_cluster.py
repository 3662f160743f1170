"""Engines with the bundled model on a Ray cluster of this machine, of which one is killed."""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from app.cluster.engine import cluster_engine
from app.cluster.scaled import ScaledEngine
from app.config import Settings
from app.engine.loading import ReplicaPlace, load_engine
from app.engine.supervisor import SupervisedEngine
from app.engine_client import Run, ServedModel
from app.models.find_model import find_model
from app.models.switching import engine_loader
from gpu import Interventions, LayerFactor, Request, SamplingParams, ScheduledUpdate
from gpu.events import Accepted, Done, Token, Updated
from gpu.inspection.requests import Losses
from gpu.pace import LEAST_PACE
from tests.app.page import wait_until
from tests.app.replicas.mortal import Written
from tests.app.replicas.test_replica_processes import (
    facts,
    settings_of,
    step,
    wait_token,
    write_slowly,
    write_to_the_end,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("ray") is None,
        reason="Ray is not installed: pip install 'tokenglass[cluster]'",
    ),
]

ROOT = Path(__file__).parents[3]
STARTS = 120
PROMPT = "Once upon a time there was a fox who"
PARAMS = SamplingParams(max_tokens=120, seed=11, temperature=0.9, ignore_eos=True)


def connect(address: str, n_engines: int = 2, n_stages: int = 1) -> ScaledEngine:
    """Return the client of engines on a cluster, started, with all engines ready."""
    settings = Settings(
        model="tale",
        ray=address,
        data_parallel_size=n_engines,
        pipeline_parallel_size=n_stages,
        weight_cache=0,
        context=512,
    )
    model = find_model(settings)
    load = engine_loader(functools.partial(load_engine, loras={}))(settings, model)

    def load_for(load: Callable[..., Any], number: int) -> Any:
        return functools.partial(load, place=ReplicaPlace(number))

    engine = cluster_engine(settings, ServedModel(load, model.tokenizer, model.path), load_for)
    engine.start()
    wait_until(lambda: all(replica.hello is not None for replica in engine.replicas), STARTS)
    return engine


@pytest.fixture(scope="module")
def engine() -> Iterator[ScaledEngine]:
    """Two engines on a cluster that is started and torn down with the module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))  # of the workers
        engine = connect("local")
        try:
            yield engine
        finally:
            engine.close()


def pid_of(engine: ScaledEngine, number: int) -> int | None:
    inner = engine.replicas[number]._engine  # type: ignore[attr-defined]
    assert isinstance(inner, SupervisedEngine)
    return inner.pid


def start(engine: ScaledEngine, prompt: str = PROMPT, **request: Any) -> tuple[Run, Written]:
    """Start a text; return its run and what receives its events."""
    written = Written()
    ids = engine.tokenizer.encode(prompt)
    return engine.submit(Request(ids, **{"params": PARAMS, **request}), written), written


def write(engine: ScaledEngine, prompt: str = PROMPT, **request: Any) -> Written:
    _, written = start(engine, prompt, **request)
    return written


def listening(processes: set[int]) -> set[str]:
    """Return the addresses on which processes listen, without ports."""
    sockets: dict[str, str] = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            columns = line.split()
            if columns[3] == "0A":
                sockets[f"socket:[{columns[9]}]"] = columns[1].partition(":")[0]
    found = set()
    for process in processes:
        with contextlib.suppress(OSError):  # some of it may end meanwhile
            for descriptor in Path(f"/proc/{process}/fd").iterdir():
                with contextlib.suppress(OSError):
                    found.add(sockets.get(os.readlink(descriptor), ""))
    return {text_of(address) for address in found - {""}}


def started_with(variable: str) -> set[int]:
    """Return the processes of this user whose environment has a variable."""
    found = set()
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and variable.encode() in (folder / "environ").read_bytes():
                found.add(int(folder.name))
    return found


def text_of(address: str) -> str:
    """Return an address of /proc/net/tcp as people write it."""
    words = [bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8)]
    found = ipaddress.ip_address(b"".join(words))
    mapped = getattr(found, "ipv4_mapped", None)
    return str(mapped or found)


def test_texts_of_a_killed_replica_are_written_to_their_end(engine: ScaledEngine) -> None:
    begun = [start(engine, f"{number}. {PROMPT}", pace=LEAST_PACE) for number in range(6)]
    assert sorted(engine.n_runs) == [3, 3], "least loaded first"
    run, moved = start(engine, pace=0)
    step(run, 6)
    wait_token(moved, 5)
    acting = Interventions(mlp=(LayerFactor(1, 0.8),))
    first = run.update(temperature=1.3, interventions=acting)
    step(run, 6)
    wait_token(moved, first + 5)
    write_slowly(run)
    number = engine.n_runs.index(max(engine.n_runs))
    pid = pid_of(engine, number)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    begun.append((run, moved))
    for one, _ in begun:
        write_to_the_end(one)
    for _, text in begun:
        assert text.until(lambda event: isinstance(event, Done)).reason == "length"  # type: ignore[union-attr]
    change = ScheduledUpdate(first, {"temperature": 1.3}, interventions=acting)
    whole = write(engine, updates=(change,))
    whole.wait_done()
    assert [facts(t) for t in moved.of(Token)] == [facts(t) for t in whole.of(Token)]
    assert settings_of(moved) == whole.of(Updated)
    assert len(moved.of(Accepted)) == 1
    wait_until(lambda: engine.replicas[number].hello is not None, STARTS)
    assert pid_of(engine, number) not in (None, pid), "it was replaced"


def test_a_conversation_stays_where_it_is_cached(engine: ScaledEngine) -> None:
    for words in ("A red lamp", "A blue owl"):
        prompt = f"{words} stood on the old table, and nobody in the house knew " * 4
        write(engine, prompt).wait_done()
        again = write(engine, prompt + "why")
        assert again.wait_done().timings.cache_n >= 32


def test_questions_and_cancels_reach_their_replica(engine: ScaledEngine) -> None:
    ids = engine.tokenizer.encode(PROMPT)
    answer = engine.inspect(Losses(ids), asker=3).result(30)
    assert answer.info["mean_loss"] > 0
    run, text = start(engine, pace=LEAST_PACE)
    wait_token(text, 0)
    run.cancel()
    assert text.wait_done().reason == "cancelled"
    assert engine.stats is not None


def test_another_server_finds_the_engines_and_leaves_them(engine: ScaledEngine) -> None:
    text = write(engine)
    text.wait_done()
    pids = [pid_of(engine, number) for number in range(2)]
    code = (
        "import sys; from tests.app.cluster.test_ray_cluster import connect, pid_of, write, Token\n"
        "engine = connect(sys.argv[1]); text = write(engine); text.wait_done()\n"
        "print([pid_of(engine, n) for n in range(2)], [t.id for t in text.of(Token)])\n"
        "engine.close()"
    )
    import ray

    address = ray.get_runtime_context().gcs_address
    command = [sys.executable, "-c", code, address]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=150)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"{pids} {[token.id for token in text.of(Token)]}"
    again = write(engine)
    again.wait_done()
    assert [pid_of(engine, number) for number in range(2)] == pids


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_cluster_listens_on_loopback_and_tells_nobody(engine: ScaledEngine) -> None:
    """Ray's processes run pickles of whoever reaches them, has its token and speaks to them."""
    processes = started_with(f"RAY_AUTH_TOKEN={os.environ['RAY_AUTH_TOKEN']}")
    assert pid_of(engine, 0) in processes, "what is looked at is this cluster"
    addresses = listening(processes)
    assert "127.0.0.1" in addresses
    assert all(ipaddress.ip_address(address).is_loopback for address in addresses), addresses
    assert os.environ["RAY_AUTH_MODE"] == "token"
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
