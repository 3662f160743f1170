"""Limit on the number of open connections, and the choice of the one to evict."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

from app.http.sockets import READ_BYTES, hang_up

MAX_CONNECTIONS = 256
RESERVED_DESCRIPTORS = 64
"""File descriptors for the engine's process, its pipe, model files, the log and the terminal."""
DESCRIPTORS_EACH = 2
"""Per connection: its socket, and a file being sent or a poll object of werkzeug."""
MIN_CONNECTIONS = 8
MIN_IDLE_SECONDS = 2.0
"""A connection without a complete request may be evicted after this time."""

REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nRetry-After: 2\r\n"
    b"Connection: close\r\nContent-Length: 53\r\n\r\n"
    b"too many connections are open; try again in a moment\n"
)


def max_connections() -> int:
    """Return the number of connections that this process has descriptors for."""
    try:
        import resource
    except ImportError:  # Windows: no such limit on sockets
        return MAX_CONNECTIONS
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    n_possible = (limit - RESERVED_DESCRIPTORS) // DESCRIPTORS_EACH
    return max(MIN_CONNECTIONS, min(MAX_CONNECTIONS, n_possible))


class Connections:
    """Open connections, at most `limit`. Thread-safe."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._n_open = 0
        self._silent: dict[socket.socket, float] = {}
        """Connections without a complete request, and their time of acceptance; oldest first."""
        self._answered: dict[socket.socket, None] = {}
        """Connections whose response is sent and whose peer has not closed yet; oldest first."""

    @property
    def n_open(self) -> int:
        return self._n_open

    def admit(self, sock: socket.socket) -> bool:
        """Count a new connection, evicting one if needed. Return False if none can be evicted."""
        with self._lock:
            if self._n_open >= self.limit and not self._evict():
                return False
            self._n_open += 1
            self._silent[sock] = time.monotonic()
            return True

    def on_request(self, sock: socket.socket) -> None:
        """Note that the request is complete: the connection is not evicted any more."""
        with self._lock:
            self._silent.pop(sock, None)

    def on_response(self, sock: socket.socket) -> None:
        """Note that the response is sent: the connection only waits for its peer to close."""
        with self._lock:
            self._silent.pop(sock, None)
            self._answered[sock] = None

    def remove(self, sock: socket.socket) -> None:
        """Remove a connection. Call this before `sock` is closed."""
        with self._lock:
            self._silent.pop(sock, None)
            self._answered.pop(sock, None)
            self._n_open -= 1

    def make_room(self) -> None:
        """Evict an answered or silent connection, because descriptors ran out."""
        with self._lock:
            self._evict()

    def _evict(self) -> bool:
        sock = next(iter(self._answered), None)
        if sock is None:
            sock, since = next(iter(self._silent.items()), (None, 0.0))
            if sock is None or time.monotonic() - since < MIN_IDLE_SECONDS:
                return False
        self._answered.pop(sock, None)
        self._silent.pop(sock, None)
        hang_up(sock)  # its thread wakes up, ends and calls `remove`
        return True


def refuse(sock: socket.socket) -> None:
    """Send a 503 response without blocking, and close the socket."""
    try:
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.recv(READ_BYTES)  # with unread bytes, close() would send a reset
        with contextlib.suppress(OSError):
            sock.send(REFUSAL)
            sock.shutdown(socket.SHUT_WR)
    finally:
        sock.close()
