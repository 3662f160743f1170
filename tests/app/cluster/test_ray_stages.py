"""An engine whose stages lie on two machines of a Ray cluster, of which one stage is killed. The
machines are two nodes on this one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from app.cluster.environment import LOCAL, set_environment
from app.cluster.scaled import ScaledEngine
from app.engine_client import Run
from app.tale import model_dir
from gpu import Engine, LoadOptions, Request
from gpu.events import Done, Event, Token
from gpu.inspection.requests import Losses
from tests.app.cluster.test_ray_cluster import PARAMS, PROMPT, ROOT, STARTS, connect, pid_of
from tests.app.cluster.test_ray_cluster import pytestmark as pytestmark
from tests.app.page import wait_until
from tests.app.replicas.test_replica_processes import (
    facts,
    step,
    write_slowly,
    write_to_the_end,
)

N_STAGES = 2


@pytest.fixture(scope="module")
def engine() -> Iterator[ScaledEngine]:
    """One engine in two stages on a cluster where no node has room for all of it."""
    set_environment(LOCAL)
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))  # of the workers
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
        try:
            cluster.add_node(num_cpus=1)
            with closing(connect(cluster.address, 1, N_STAGES)) as engine:
                yield engine
        finally:
            cluster.shutdown()


def write(
    engine: ScaledEngine, n: int, pace: float | None = None
) -> tuple[list[Run], list[list[Event]]]:
    """Start `n` texts; return their runs, and the lists that their events come to."""
    texts: list[list[Event]] = [[] for _ in range(n)]
    runs = [
        engine.submit(Request(ids(engine, number), PARAMS, pace=pace), text.append)
        for number, text in enumerate(texts)
    ]
    return runs, texts


def ids(engine: Any, number: int) -> list[int]:
    found: list[int] = engine.tokenizer.encode(f"{number}. {PROMPT}")
    return found


def tokens(text: list[Event]) -> list[Token]:
    return [event for event in text if isinstance(event, Token)]


def done(text: list[Event]) -> bool:
    return bool(text) and isinstance(text[-1], Done)


def kill_stage(number: int) -> None:
    import ray

    (stage,) = [
        actor
        for actor in ray.util.list_named_actors(all_namespaces=True)
        if actor["name"].endswith(f" stage {number}")
    ]
    ray.kill(ray.get_actor(**stage))


def test_stages_lie_on_both_machines(engine: ScaledEngine) -> None:
    import ray

    (placed,) = [
        group
        for group in ray.util.placement_group_table().values()
        if group["state"] == "CREATED" and len(group["bundles"]) == 1 + N_STAGES
    ]
    assert len(set(placed["bundles_to_node_id"].values())) == 2
    assert engine.hello is not None
    assert engine.hello.device.name.startswith("2 × ")


def test_a_cluster_without_room_for_all_stages_is_told_of() -> None:
    from app.cluster.cluster import EngineNeeds

    three = EngineNeeds(3, has_gpus=True)
    assert three.missing({"CPU": 1, "GPU": 3}) is None
    missing = three.missing({"CPU": 64, "GPU": 2})
    assert missing is not None
    assert "has 2 GPUs, but an engine in 3 stages needs 3" in missing
    software = EngineNeeds(2)
    assert software.missing({"CPU": 3}) is None, "a core for the engine, and one for each stage"
    assert "has 2 CPUs, but an engine in 2 stages needs 3" in str(software.missing({"CPU": 2}))
    assert EngineNeeds(1).missing({"CPU": 1}) is None


def test_texts_of_a_killed_stage_go_on_with_the_ids_of_one_device(engine: ScaledEngine) -> None:
    runs, texts = write(engine, 3, pace=0)
    for run in runs:
        step(run, 6)
    wait_until(lambda: all(len(tokens(text)) > 5 for text in texts))
    pid = pid_of(engine, 0)
    for run in runs:
        write_slowly(run)
    kill_stage(2)
    for run in runs:
        write_to_the_end(run, STARTS)
    wait_until(lambda: all(done(text) for text in texts), STARTS)
    with closing(Engine.load(model_dir(), LoadOptions(dtype="f16", context=512))) as one:
        for number, text in enumerate(texts):
            alone = list(one.submit(Request(ids(one, number), PARAMS)))
            assert [facts(token) for token in tokens(text)] == [facts(token) for token in alone]
    assert pid_of(engine, 0) not in (None, pid), "the engine was replaced"
    answer = engine.inspect(Losses(ids(engine, 0)), asker=1).result(30)
    assert answer.info["mean_loss"] > 0


def test_an_idle_engine_is_replaced_when_a_stage_is_gone(engine: ScaledEngine) -> None:
    wait_until(lambda: engine.hello is not None, STARTS)
    pid = pid_of(engine, 0)
    kill_stage(1)
    wait_until(lambda: engine.hello is not None and pid_of(engine, 0) not in (None, pid), STARTS)
    _, (text,) = write(engine, 1)
    wait_until(lambda: done(text), STARTS)
    assert len(tokens(text)) == PARAMS.max_tokens
