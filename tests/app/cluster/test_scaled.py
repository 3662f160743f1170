"""Replicas that come and go with the load, with engines of this process in place of a cluster."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.cluster import scaled
from app.cluster.scaled import ScaledEngine, ScaledReplica, wanted_engines
from app.config import Settings, SettingsError
from app.engine_client import EngineClient, ServedModel
from app.protocol.messages import Status
from app.server import serve
from gpu import Request, SamplingParams
from gpu.events import Token
from tests.app.page import wait_until
from tests.app.replicas.mortal import MortalEngine, Written, token
from tests.gpu.engine.scripted_runner import expected

PROMPT = [9, 8, 7] * 12
Start = Callable[..., ScaledEngine]


class Scene:
    """What became of the replicas: engines in the order they were made, and what was freed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.n_slots = 1
        self.made: list[MortalEngine] = []
        self.n_removed = 0
        self.n_closed = 0

    def make(self, served: ServedModel) -> EngineClient:
        self.made.append(MortalEngine(self.folder, n_slots=self.n_slots, queue=2))
        return self.made[-1]

    def remove(self) -> None:
        self.n_removed += 1

    def close(self) -> None:
        self.n_closed += 1


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


@pytest.fixture
def start(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Return a function that starts up to `most` engines; only the test looks at their load."""
    monkeypatch.setattr(scaled, "LOOK_SECONDS", 3600.0)
    engines: list[ScaledEngine] = []

    def start(least: int = 1, most: int = 2) -> ScaledEngine:
        model = MortalEngine(scene.folder)
        served = ServedModel(lambda progress: None, model.tokenizer, None)  # type: ignore[arg-type, return-value]
        replicas = [ScaledReplica(scene.make, served, scene.remove) for _ in range(most)]
        engine = ScaledEngine(replicas, least, scene.close, lambda load, number: load)
        engines.append(engine)
        engine.start()
        wait_until(lambda: engine.hello is not None)
        return engine

    yield start
    for engine in engines:
        engine.close()
    assert scene.n_closed == len(engines)


def write(engine: ScaledEngine, n: int, ids: list[int] = PROMPT, stop: int = -1) -> Written:
    """Submit a text, at whose token `stop` its engine stands still until `go_on`."""
    written = Written(token(stop))
    engine.submit(Request(ids, SamplingParams(max_tokens=n, ignore_eos=True)), written)
    return written


def look(engine: ScaledEngine, times: int) -> None:
    for _ in range(times):
        engine.look()


@pytest.mark.parametrize(("n_runs", "wanted"), [(0, 2), (8, 2), (9, 3), (12, 3), (13, 4), (999, 5)])
def test_engines_are_wanted_for_all_texts(n_runs: int, wanted: int) -> None:
    assert wanted_engines(n_runs, 4, least=2, most=5) == wanted


def test_an_engine_that_is_not_needed_is_away(start: Start) -> None:
    engine = start()
    here, away = engine.replica_statuses()
    assert (here.state, away.state) == ("ready", "away")
    assert here.stats is not None
    assert away.stats is None


def test_an_engine_that_is_away_hides_no_fault_of_the_others(start: Start, scene: Scene) -> None:
    engine = start()
    fault = Status("restarting", "it stopped 4 times; trying again in 1 s", None, 1)
    scene.made[0]._set_state(fault)
    assert engine.status == fault


def test_another_engine_comes_when_texts_wait_for_some_time(start: Start, scene: Scene) -> None:
    engine = start()
    assert (engine.n_here, len(scene.made)) == (1, 1)
    texts = [write(engine, 10, stop=0), write(engine, 10)]
    look(engine, scaled.GROW_AFTER - 1)
    assert engine.n_here == 1
    look(engine, 1)
    wait_until(lambda: len(scene.made) == 2 and scene.made[1].hello is not None)
    texts.append(write(engine, 5))
    assert scene.made[1].requests, "the new one is the least loaded"
    texts[0].go_on()
    for text in texts:
        assert text.wait_done().reason == "length"


def test_paused_texts_need_no_engine(start: Start, scene: Scene) -> None:
    engine = start()
    for _ in range(2):
        paused = Request(PROMPT, SamplingParams(max_tokens=5), pace=0)
        engine.submit(paused, Written())
    wait_until(lambda: (stats := engine.stats) is not None and stats.n_paused == 2)
    look(engine, scaled.GROW_AFTER)
    assert engine.n_here == 1
    write(engine, 3).wait_done()


def test_an_idle_engine_leaves_after_some_time_and_comes_back(start: Start, scene: Scene) -> None:
    engine = start()
    replica = engine.replicas[1]
    assert isinstance(replica, ScaledReplica)
    replica.come()
    wait_until(lambda: replica.hello is not None)
    look(engine, scaled.SHRINK_AFTER - 1)
    assert engine.n_here == 2
    look(engine, 1)
    assert (engine.n_here, scene.n_removed) == (1, 1)
    assert engine.replicas[1].hello is None
    assert engine.hello is not None, "the other one is there"
    look(engine, 2 * scaled.SHRINK_AFTER)
    assert engine.n_here == 1, "never fewer than the least"
    replica.come()
    wait_until(lambda: replica.hello is not None)
    assert len(scene.made) == 3


def test_an_engine_that_writes_does_not_leave(start: Start, scene: Scene) -> None:
    scene.n_slots = 2
    engine = start()
    replica = engine.replicas[1]
    assert isinstance(replica, ScaledReplica)
    replica.come()
    wait_until(lambda: replica.hello is not None)
    texts = [write(engine, 10, stop=0), write(engine, 20, [5] * 36, stop=0)]
    assert engine.n_runs == [1, 1]
    look(engine, 3 * scaled.SHRINK_AFTER)
    assert engine.n_here == 2, "one would do, but both write"
    for text in texts:
        text.go_on()
        assert text.wait_done().reason == "length"
    look(engine, 1)
    assert engine.n_here == 1


def test_engines_that_are_here_are_loaded_again(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    reloaded: list[EngineClient] = []
    monkeypatch.setattr(MortalEngine, "reload", lambda replica: reloaded.append(replica))
    engine = start()
    engine.reload()
    assert len(reloaded) == engine.n_here == 1
    wait_until(lambda: engine.hello is not None)
    assert write(engine, 3).wait_done().reason == "length"


def test_a_text_goes_on_when_its_engine_leaves(start: Start) -> None:
    engine = start(least=2)
    wait_until(lambda: all(replica.hello is not None for replica in engine.replicas))
    text = write(engine, 60, stop=10)
    text.until(token(10))
    (number,) = [i for i, n in enumerate(engine.n_runs) if n]
    replica = engine.replicas[number]
    assert isinstance(replica, ScaledReplica)
    made = replica._engine
    assert isinstance(made, MortalEngine)
    made.die()
    text.go_on()
    replica.leave()
    text.wait_done()
    assert [token.id for token in text.of(Token)] == expected(PROMPT, 60)


def test_without_ray_the_option_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "ray"]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("app.cluster.cluster", "app.cluster.process", "app.cluster.replica"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    with pytest.raises(SettingsError, match=r"pip install 'tokenglass\[cluster\]'"):
        serve(Settings(ray="local", port=0), lambda line: None)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"ray": "ray://head:10001"}, "HOST:PORT"),
        ({"ray": "local", "data_parallel_size": 3, "max_data_parallel_size": 2}, r"\(2\) must be"),
        ({"ray": "local", "upstream": "http://localhost"}, "--ray is about an engine"),
        ({"ray": "local", "adapter": "0,1"}, "more GPUs"),
    ],
)
def test_settings_that_contradict_each_other(settings: dict[str, object], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        Settings(**settings).validate()  # type: ignore[arg-type]
