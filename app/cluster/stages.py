"""Stages of an engine's model as Ray actors, each on a device of its own, on any machine of the
cluster.

Ray places, starts and ends the processes. Rows and steps do not pass through Ray, which takes about
a millisecond for each message, but through sockets between the processes (`gpu.stage_server`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from gpu import DeviceError, StageAddress, stage_server

START_SECONDS = 120.0
"""Longest time until the processes of all stages are there; their places are reserved already."""


class StageActor:
    """Actor that runs one stage."""

    def __init__(self, log_level: str) -> None:
        logging.basicConfig(level=log_level.upper(), format="%(name)s: %(message)s")

    def listen(self) -> StageAddress:
        """Begin to wait for the engine."""
        gpus = ray.get_gpu_ids()
        server = stage_server(ray.util.get_node_ip_address(), str(gpus[0]) if gpus else None)
        threading.Thread(target=server.serve, name="stage server", daemon=True).start()
        return server.address


class StageActors:
    """The actors of one engine's stages. Implements `gpu.StageHosts`.

    places  the engine's placement group: bundle 0 is its own, then one for each stage
    device  what an actor needs of its bundle, as options of Ray's actors
    """

    def __init__(self, places: PlacementGroup, device: dict[str, float], log_level: str) -> None:
        self.failure: str | None = None
        """Why no step can succeed any more."""
        self._places = places
        self._device = device
        self._log_level = log_level
        self._actors: list[Any] = []
        self._n_starts = 0  # a name becomes free some time after its actor has ended

    def start(self, n_stages: int) -> Sequence[StageAddress]:
        actor_class = ray.remote(StageActor)
        self._n_starts += 1
        engine = f"{ray.get_runtime_context().get_actor_name()} start {self._n_starts}"
        for i in range(n_stages):
            place = PlacementGroupSchedulingStrategy(
                self._places, placement_group_bundle_index=1 + i
            )
            actor = actor_class.options(
                name=f"{engine} stage {i + 1}",
                scheduling_strategy=place,
                **{"num_cpus": 0, **self._device},
            )
            self._actors.append(actor.remote(self._log_level))
        listening = [actor.listen.remote() for actor in self._actors]
        addresses: list[StageAddress] = []
        for i, address in enumerate(listening):
            try:
                addresses.append(ray.get(address, timeout=START_SECONDS))
            except RayError as error:
                raise DeviceError(
                    f"the process of stage {i + 1} of {n_stages} could not be started on the "
                    f"cluster ({type(error).__name__}: {error})"
                ) from None
        return addresses

    def lost(self, message: str) -> None:
        self.failure = message

    def end(self) -> None:
        for actor in self._actors:
            ray.kill(actor)
        self._actors.clear()
