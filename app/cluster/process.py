"""A replica on the cluster as the process of an engine: what `app.engine.child.Child` is on this
machine."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from typing import Any

from ray.exceptions import RayError

from app.cluster.cluster import Cluster
from app.cluster.replica import PING_SECONDS, ConnectionOpened
from app.engine_client import Load

CONNECT_SECONDS = 120.0
"""Longest time until a replica that is started or replaced answers."""
RETRY_SECONDS = 0.5
SEND_SECONDS = 30.0


class ReplicaPipe:
    """Connection to a replica. `handle` is that of its application in Ray Serve."""

    def __init__(self, handle: Any) -> None:
        """Raises OSError if the replica does not answer."""
        self._handle = handle
        self._stream, self.opened = _open(handle)
        self._waiting: deque[bytes] = deque()
        self._pinged_at = time.monotonic()

    def send_bytes(self, data: bytes, /) -> None:
        """Return when the replica has the message, so that the next one comes after it."""
        try:
            self._handle.send.remote(self.opened.link, data).result(timeout_s=SEND_SECONDS)
        except (RayError, TimeoutError, KeyError) as error:
            raise OSError(f"the replica is gone ({type(error).__name__})") from None

    def recv_bytes(self) -> bytes:
        while not self._waiting:
            try:
                self._waiting.extend(next(self._stream))
            except StopIteration:
                raise EOFError from None
            except RayError as error:
                raise EOFError(type(error).__name__) from None
            self._ping()
        return self._waiting.popleft()

    def close(self) -> None:
        with contextlib.suppress(RayError):
            self._stream.cancel()

    def _ping(self) -> None:
        """Give a sign of life if it is time. Called at every beat of the engine."""
        if time.monotonic() - self._pinged_at > PING_SECONDS:
            self._pinged_at = time.monotonic()
            self._handle.send.remote(self.opened.link, b"")


def _open(handle: Any) -> tuple[Any, ConnectionOpened]:
    """Connect to a replica, as soon as one is there."""
    deadline = time.monotonic() + CONNECT_SECONDS
    while True:
        stream = handle.options(stream=True).connect.remote()
        try:
            return stream, ConnectionOpened(*next(stream))
        except (RayError, StopIteration) as error:  # it died, and its successor is not there yet
            if time.monotonic() > deadline:
                raise OSError(f"the replica does not answer ({type(error).__name__})") from None
        time.sleep(RETRY_SECONDS)


class ReplicaProcess:
    """Replica `number` of the cluster, started if it is not there. `app.engine.child` has the
    meaning of its methods."""

    def __init__(self, cluster: Cluster, number: int, load: Load, log_level: str) -> None:
        """Raises OSError or RuntimeError. The replicas all have the log level of the cluster."""
        self._cluster = cluster
        self.pipe = ReplicaPipe(cluster.deploy(number, load))
        self.pid: int | None = self.pipe.opened.pid
        self._killed_because = ""

    def kill(self, reason: str) -> bool:
        self._killed_because = reason
        self._cluster.kill(self.pipe.opened.actor)
        return True

    def wait_exit(self) -> str:
        return self._killed_because or "its replica on the cluster is gone"

    def release(self) -> bool:
        self.pid = None
        return True
