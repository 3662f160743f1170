"""Writing to the engine's process without ever waiting for it: a frozen one does not read."""

from __future__ import annotations

import contextlib
import queue
import threading

from app.engine.child import Pipe
from app.engine_client import UnavailableError

MAX_WAITING_BYTES = 32 * 1024 * 1024
"""Bytes of messages that the process has not read yet. A running process reads at once."""


class PipeWriter:
    """Sends messages in order, on a thread of its own. What is left when the process has gone is
    dropped."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._n_bytes = 0
        self._thread = threading.Thread(target=self._write, name="pipe writer", daemon=True)
        self._thread.start()

    def send(self, message: bytes, *, force: bool = False) -> None:
        """Return at once. Raises `UnavailableError` when too much waits already, unless `force`."""
        with self._lock:
            if not force and self._n_bytes + len(message) > MAX_WAITING_BYTES:
                raise UnavailableError(
                    "the engine does not take requests at the moment; try again in a few seconds"
                )
            self._n_bytes += len(message)
        self._queue.put(message)

    def stop(self, seconds: float) -> bool:
        """End the thread; False if it is still in a write after `seconds`."""
        self._queue.put(None)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _write(self) -> None:
        with contextlib.suppress(OSError):
            while (message := self._queue.get()) is not None:
                self._pipe.send_bytes(message)
                with self._lock:
                    self._n_bytes -= len(message)
