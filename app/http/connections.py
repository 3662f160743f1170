"""Limit on the number of open connections, and the choice of the one to evict."""

from __future__ import annotations

import contextlib
import io
import socket
import threading
import time
from collections.abc import Iterator, Set
from typing import TYPE_CHECKING

from app.http.sockets import READ_BYTES, hang_up

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

MAX_CONNECTIONS = 256
RESERVED_DESCRIPTORS = 64
"""File descriptors for the engine's process, its pipe, model files, the log and the terminal."""
DESCRIPTORS_EACH = 2
"""Per connection: its socket, and a file being sent or a poll object of werkzeug."""
MIN_CONNECTIONS = 8
MIN_IDLE_SECONDS = 2.0
"""A connection that waits for its peer for this time may be evicted."""

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
    """Open connections, at most `limit`, a quarter of them reserved for requests that are
    answered at once. Thread-safe."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._most_working = limit - limit // 4
        self._working: set[socket.socket] = set()
        """Connections whose request may take long."""
        self._lock = threading.Lock()
        self._n_open = 0
        self._waiting: dict[socket.socket, float] = {}
        """Connections that wait for their peer to send a whole request or to read what is sent, and
        since when; oldest first."""
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
            self._waiting[sock] = time.monotonic()
            return True

    def begin_work(self, sock: socket.socket) -> bool:
        """Note that the request may take long. If there are too many of these, evict one that waits
        for its peer; return False if there is none."""
        with self._lock:
            if len(self._working) >= self._most_working and not self._evict(self._working):
                return False
            self._working.add(sock)
            return True

    def on_request(self, sock: socket.socket) -> None:
        """Note that the request is complete: its answer may take any time to begin."""
        with self._lock:
            self._waiting.pop(sock, None)

    @contextlib.contextmanager
    def sending(self, sock: socket.socket) -> Iterator[None]:
        """Note that bytes are sent, for which the peer must make room by reading."""
        with self._lock:
            self._waiting.pop(sock, None)
            self._waiting[sock] = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                self._waiting.pop(sock, None)

    def on_response(self, sock: socket.socket) -> None:
        """Note that the response is sent: the connection only waits for its peer to close."""
        with self._lock:
            self._waiting.pop(sock, None)
            self._working.discard(sock)
            self._answered[sock] = None

    def remove(self, sock: socket.socket) -> None:
        """Remove a connection. Call this before `sock` is closed."""
        with self._lock:
            self._waiting.pop(sock, None)
            self._answered.pop(sock, None)
            self._n_open -= 1

    def make_room(self) -> None:
        """Evict a connection that is answered or waits, because descriptors ran out."""
        with self._lock:
            self._evict()

    def _evict(self, among: Set[socket.socket] | None = None) -> bool:
        """Evict a connection, one of `among` if given. Return False if none can be."""
        sock = next(iter(self._answered), None) if among is None else None
        if sock is None:
            waiting = ((s, at) for s, at in self._waiting.items() if among is None or s in among)
            sock, since = next(waiting, (None, 0.0))
            if sock is None or time.monotonic() - since < MIN_IDLE_SECONDS:
                return False
        self._answered.pop(sock, None)
        self._waiting.pop(sock, None)
        self._working.discard(sock)
        hang_up(sock)  # its thread wakes up, ends and calls `remove`
        return True


class ResponseStream(io.BufferedIOBase):
    """Body of a response on a socket. A connection whose peer does not read may be evicted."""

    def __init__(self, sock: socket.socket, connections: Connections) -> None:
        self._sock = sock
        self._connections = connections

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        with self._connections.sending(self._sock):
            self._sock.sendall(data)
        return memoryview(data).nbytes


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
