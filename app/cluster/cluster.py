"""The Ray cluster: started or found, and the deployments on it.

Every engine is an application of Ray Serve with one replica of its own, so that a text keeps its
replica and `app.replicas.router` can choose one. Its name has a fingerprint of the model and its
settings: a server that finds an engine like its own uses it, and leaves it there at its end.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray import serve

from app.cluster.environment import LOCAL
from app.cluster.replica import EngineReplica
from app.config import Settings
from app.engine_client import Load
from app.load_options import load_options

log = logging.getLogger(__name__)

SERVE_NAMESPACE = "serve"
MAX_REQUESTS = 4096
"""Calls that a replica answers at once. The engine has its own queue, which refuses what is too
much."""
DEPLOYMENT = {
    "num_replicas": 1,
    "max_ongoing_requests": MAX_REQUESTS,
    "health_check_period_s": 1.0,
    "graceful_shutdown_timeout_s": 1.0,
    "graceful_shutdown_wait_loop_s": 0.1,
}


class Cluster:
    """Connection to a Ray cluster. Raises OSError or RuntimeError if there is none to be had."""

    def __init__(self, settings: Settings) -> None:
        self._log_level = settings.log_level
        self._lock = threading.Lock()
        self._names: dict[int, str] = {}  # of the application of each engine
        self._own: set[str] = set()  # those that were started here
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        self._is_local = settings.ray == LOCAL
        n_stages = settings.pipeline_parallel_size
        if self._is_local:
            n_processes = settings.n_engines * EngineNeeds(n_stages).n_processes
            n_cpus = max(os.cpu_count() or 1, n_processes)
            ray.init(LOCAL, num_cpus=n_cpus, include_dashboard=False, **quiet)
        else:
            ray.init(settings.ray, **quiet)
        serve.start(proxy_location="Disabled")  # texts come through this server
        resources = ray.cluster_resources()
        self._needs = EngineNeeds(n_stages, has_gpus=resources.get("GPU", 0) > 0)
        if (missing := self._needs.missing(resources)) is not None:
            log.warning("%s", missing)

    def deploy(self, number: int, load: Load) -> Any:
        """Return the handle of engine `number`, which `load` loads; it is started unless it is
        there. The one that had this number before ends first, as it has the GPU."""
        name = f"tokenglass-{fingerprint(load)}-{number}"
        with self._lock:
            if self._names.get(number, name) != name:
                self._delete(self._names[number])
            self._names[number] = name
            if name not in serve.status().applications:
                options = {**DEPLOYMENT, **self._needs.options()}
                deployment = serve.deployment(**options, name="engine")(EngineReplica)
                self._own.add(name)
                app = deployment.bind(load, number, self._log_level, self._needs.stage_device)
                serve.run(app, name=name, route_prefix=None, blocking=False)
            return serve.get_app_handle(name)

    def remove(self, number: int) -> None:
        """End the engine `number`, if it was started here."""
        with self._lock:
            name = self._names.pop(number, None)
            if name is not None:
                self._delete(name)

    def kill(self, actor: str) -> None:
        """Kill the actor of a replica; Ray Serve starts another one."""
        with contextlib.suppress(ValueError):  # it is gone
            ray.kill(ray.get_actor(actor, namespace=SERVE_NAMESPACE))

    def close(self) -> None:
        """End the engines that were started here, and a cluster of this server's own."""
        with self._lock:
            for name in () if self._is_local else tuple(self._own):
                self._delete(name)
            ray.shutdown()

    def _delete(self, name: str) -> None:
        if name in self._own:
            self._own.discard(name)
            serve.delete(name)


@dataclass(frozen=True, slots=True)
class EngineNeeds:
    """Resources of the cluster that one engine needs: a GPU, or a core with a software device where
    there are none. With several stages: one for each stage, and a core for the engine."""

    n_stages: int
    has_gpus: bool = False

    @property
    def n_processes(self) -> int:
        """Processes of an engine: its own, and those of its stages if it has several."""
        return 1 if self.n_stages == 1 else 1 + self.n_stages

    @property
    def stage_device(self) -> dict[str, float] | None:
        """Ray resources of the actor of a stage; None for a single stage, which has no actor."""
        return None if self.n_stages == 1 else self._device

    @property
    def _device(self) -> dict[str, float]:
        return {"num_gpus" if self.has_gpus else "num_cpus": 1}

    def missing(self, resources: Mapping[str, float]) -> str | None:
        """Return what a cluster with these resources lacks for one engine, None if it has all. More
        machines may join."""
        kind, n_needed = ("GPU", self.n_stages) if self.has_gpus else ("CPU", self.n_processes)
        n_there = resources.get(kind, 0)
        if n_there >= n_needed:
            return None
        return (
            f"the Ray cluster has {n_there:g} {kind}s, but an engine in {self.n_stages} stages "
            f"needs {n_needed}; it starts when machines with more have joined"
        )

    def options(self) -> dict[str, Any]:
        """Return the options of the deployment. Stages are on as few machines as can be."""
        if self.n_stages == 1:
            return {"ray_actor_options": self._device}
        stage = {"GPU" if self.has_gpus else "CPU": 1}
        return {
            "ray_actor_options": {"num_cpus": 1},
            "placement_group_bundles": [{"CPU": 1}, *([stage] * self.n_stages)],
            "placement_group_strategy": "PACK",
        }


def fingerprint(load: Load) -> str:
    """Return a short text that is the same for engines of the same model and settings."""
    assert isinstance(load, functools.partial)
    parts = [
        load_options(part) if isinstance(part, Settings) else part
        for part in (*load.args, *(v for k, v in sorted(load.keywords.items()) if k != "tokenizer"))
    ]
    name = f"{load.func.__module__}.{load.func.__qualname__}"
    return hashlib.sha256(repr((name, parts)).encode()).hexdigest()[:12]
