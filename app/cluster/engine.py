"""Client of the engines on a Ray cluster."""

from __future__ import annotations

import functools
from collections.abc import Callable

from app.cluster.environment import set_environment
from app.cluster.scaled import ScaledEngine, ScaledReplica
from app.config import Settings
from app.engine.heartbeat import Timeouts
from app.engine.supervisor import Fetch, SupervisedEngine
from app.engine_client import EngineClient, Load, ServedModel


def cluster_engine(
    settings: Settings,
    served: ServedModel,
    load_for: Callable[[Load, int], Load],
    fetch: Fetch | None = None,
) -> ScaledEngine:
    """Connect to the cluster that the settings name, and return the client of its engines.

    Raises ModuleNotFoundError without Ray, and OSError or RuntimeError without a cluster. `fetch`
    brings the model's files to this machine; on the others they must be at the same path.
    """
    assert settings.ray is not None
    set_environment(settings.ray)
    from app.cluster.cluster import Cluster
    from app.cluster.process import ReplicaProcess

    cluster = Cluster(settings)

    def make(number: int, served: ServedModel) -> EngineClient:
        return SupervisedEngine(
            served.load,
            served.tokenizer,
            settings.log_level,
            served.path,
            fetch,
            timeouts=Timeouts(step=settings.engine_timeout),
            start_process=functools.partial(ReplicaProcess, cluster, number),
        )

    replicas = [
        ScaledReplica(
            functools.partial(make, number),
            ServedModel(load_for(served.load, number), served.tokenizer, served.path),
            functools.partial(cluster.remove, number),
        )
        for number in range(settings.n_engines)
    ]
    return ScaledEngine(replicas, settings.data_parallel_size, cluster.close, load_for)
