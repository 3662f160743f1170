"""Socket of a stage's process, which accepts those who have its key, whatever strangers do."""

from __future__ import annotations

import queue
import secrets
import socket
import threading
import time
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge

from gpu.errors import DeviceError
from gpu.runners.stage_connection import StageConnection
from gpu.stage_hosts import StageAddress

KEY_BYTES = 32
BACKLOG = 8
MAX_STRANGERS = 32
"""Connections that have not proved the key. One more ends the oldest."""
RETRY_SECONDS = 0.1


class StageListener:
    """Listens on a free port of `host`. Each connection proves the key on a thread of its own, so
    that one which says nothing keeps nobody waiting."""

    def __init__(self, host: str) -> None:
        self._socket = socket.create_server((host, 0), backlog=BACKLOG)
        _, port = self._socket.getsockname()
        key = secrets.token_bytes(KEY_BYTES)
        self.address = StageAddress(host, port, key, socket.gethostname())
        self._lock = threading.Lock()
        self._strangers: dict[socket.socket, None] = {}  # oldest first
        self._known: queue.SimpleQueue[StageConnection | None] = queue.SimpleQueue()
        threading.Thread(target=self._accept_all, daemon=True).start()

    def accept(self) -> StageConnection:
        """Wait for the next connection of somebody who has the key. Raises DeviceError once the
        listener is closed."""
        connection = self._known.get()
        if connection is None:
            self._known.put(None)  # for whoever else waits
            raise DeviceError("the engine has ended")
        return connection

    def close(self) -> None:
        """Accept nobody any more."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes `_accept_all` on Linux
        self._socket.close()
        self._known.put(None)

    def _accept_all(self) -> None:
        while self._socket.fileno() >= 0:
            try:
                stranger, _ = self._socket.accept()
            except OSError:  # closed, or the process has no file descriptor left for now
                time.sleep(RETRY_SECONDS)
                continue
            self._admit(stranger)
            threading.Thread(target=self._prove, args=(stranger,), daemon=True).start()

    def _admit(self, stranger: socket.socket) -> None:
        with self._lock:
            if len(self._strangers) >= MAX_STRANGERS:
                oldest = next(iter(self._strangers))
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread wakes up, and ends
                del self._strangers[oldest]
            self._strangers[stranger] = None

    def _prove(self, stranger: socket.socket) -> None:
        with stranger:
            connection = Connection(stranger.dup().detach())
            try:
                deliver_challenge(connection, self.address.key)
                answer_challenge(connection, self.address.key)
                known = True
            except (EOFError, AuthenticationError, OSError):
                known = False
            with self._lock:
                known &= stranger in self._strangers
                self._strangers.pop(stranger, None)
            if known:
                self._known.put(StageConnection(connection))
            else:
                connection.close()
