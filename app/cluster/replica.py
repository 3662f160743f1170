"""The deployment: an engine in a Ray actor, and the servers that are connected to it.

A connection speaks what the pipe of an engine's process speaks (`app.engine.pipe`): one call of
`connect` streams what the engine says, calls of `send` bring what the server says. If the engine
ends by itself, so does the actor's process, and Ray Serve starts another one.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import multiprocessing
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import ray
from ray.serve._private import replica as serve_replica

from app.cluster.shared_engine import SharedEngine
from app.cluster.stages import StageActors
from app.engine.loading import ReplicaPlace
from app.engine.main import EngineMain
from app.engine_client import Engine, Load, Progress

PING_SECONDS = 5.0
"""Time between two signs of life of a server."""
BATCH_SECONDS = 0.005
"""Time for more messages to join one that is sent: each that goes through Ray alone costs about a
millisecond of a core at both ends."""
SILENT_SECONDS = 60.0
"""A server that was silent for so long is gone, however its connection looks."""
END = b""
"""Message after the last one of an engine."""


class ConnectionOpened(NamedTuple):
    """First message of a connection: its number, and the process and name of the actor."""

    link: int
    pid: int
    actor: str


class EngineReplica:
    """An engine that several servers may use. It is loaded when the first one connects."""

    def __init__(
        self,
        load: Callable[..., Engine],
        number: int,
        log_level: str,
        stage_device: dict[str, float] | None,
    ) -> None:
        """`stage_device`: what each stage of the model needs, in actors of their own; None: the
        model is not in stages."""
        logging.basicConfig(level=log_level.upper(), format="%(name)s: %(message)s")
        _listen_in_cluster_only()
        self._stages: StageActors | None = None
        if stage_device is not None:
            places = ray.util.get_current_placement_group()
            assert places is not None, "the deployment has a placement group"
            self._stages = StageActors(places, stage_device, log_level)
        self._load = _on_given_devices(load, number, self._stages)
        self._loading = threading.Lock()
        self._engine: Engine | None = None
        self._links: dict[int, ServerConnection] = {}
        self._numbers = itertools.count(1)

    async def connect(self) -> AsyncIterator[Any]:
        """Yield `ConnectionOpened`, then the engine's messages in lists, until it is closed."""
        number = next(self._numbers)
        link = self._links[number] = ServerConnection(asyncio.get_running_loop())
        link.start(functools.partial(self._share, number))
        try:
            yield ConnectionOpened(
                number, os.getpid(), ray.get_runtime_context().get_actor_name() or ""
            )
            while (messages := await link.receive()) is not None:
                yield messages
        finally:
            del self._links[number]
            link.close()

    async def send(self, number: int, message: bytes) -> None:
        """Take a message of a server; an empty one is a sign of life. Raises KeyError if its
        connection has ended."""
        self._links[number].send(message)

    def check_health(self) -> None:
        """Tell Ray Serve whether to replace this replica. An engine that does nothing does not
        notice that a stage is gone."""
        for part in (self._engine, self._stages):
            if part is not None and part.failure is not None:
                raise RuntimeError(part.failure)

    def _share(self, link: int, progress: Progress) -> Engine:
        """Return the engine for a connection; load it if that has not happened."""
        with self._loading:
            if self._engine is None:
                self._engine = self._load(progress)
            return SharedEngine(self._engine, link)


def _listen_in_cluster_only() -> None:
    """Have Ray Serve listen on this machine's address in the cluster: for calls between deployments
    it would listen on every interface, of a cluster on loopback as well."""
    listen = getattr(serve_replica, "add_port_to_grpc_server", None)
    if listen is None:
        raise RuntimeError(f"Ray {ray.__version__} listens in a way not known here; install 2.60")
    address = ray.util.get_node_ip_address()
    host = f"[{address}]" if ":" in address else address

    def listen_there(server: Any, everywhere: str) -> int:
        port: int = listen(server, everywhere.replace("[::]", host))
        return port

    serve_replica.add_port_to_grpc_server = listen_there


def _on_given_devices(load: Callable[..., Engine], number: int, stages: StageActors | None) -> Load:
    """Return the function that loads engine `number`: on its stages, or on the GPU that Ray gave
    this actor if it did."""
    gpus = ray.get_gpu_ids()
    place = ReplicaPlace(number, str(gpus[0]) if gpus else None, stages)
    return functools.partial(load, place=place)


class ServerConnection:
    """Connection of a server: the ends of a pipe, of which `EngineMain` serves the other one."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ours, self._theirs = multiprocessing.Pipe()
        self._messages: asyncio.Queue[bytes] = asyncio.Queue()
        self._heard_at = time.monotonic()

    def start(self, load: Load) -> None:
        for target, args in ((self._serve, (self._theirs, load)), (self._read, (self._ours,))):
            threading.Thread(target=target, args=args, name="link", daemon=True).start()

    def send(self, message: bytes) -> None:
        self._heard_at = time.monotonic()
        if message:
            self._ours.send_bytes(message)

    async def receive(self) -> list[bytes] | None:
        """Return the messages that have come, at least one; None at the end."""
        while True:
            if time.monotonic() - self._heard_at > SILENT_SECONDS:
                return None
            try:
                messages = [await asyncio.wait_for(self._messages.get(), PING_SECONDS)]
                break
            except TimeoutError:
                continue
        await asyncio.sleep(BATCH_SECONDS)
        while not self._messages.empty():
            messages.append(self._messages.get_nowait())
        if messages[-1] == END:
            messages.pop()
            self._messages.put_nowait(END)
        return messages or None

    def close(self) -> None:
        """Hang up: the runs of this connection end."""
        self._ours.close()

    @staticmethod
    def _serve(pipe: Connection, load: Load) -> None:
        try:
            EngineMain(pipe, on_hang_up=lambda: None).serve(load)
            pipe.send_bytes(END)
        except OSError:
            return  # the server has hung up

    def _read(self, pipe: Connection) -> None:
        try:
            while True:
                message = pipe.recv_bytes()
                self._loop.call_soon_threadsafe(self._messages.put_nowait, message)
                if message == END:
                    return
        except (EOFError, OSError):
            return  # it was closed
