"""Bound on the connections that are open at once, and the choice of which one gives way."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

from app.sockets import READ_BYTES, hang_up

MOST_CONNECTIONS = 256
RESERVED_DESCRIPTORS = 64
"""For the engine's process and its pipe, the model's files, the log and the terminal."""
DESCRIPTORS_EACH = 2
"""A connection's socket, and a file that it is sent or a poll of werkzeug's."""
LEAST_CONNECTIONS = 8
UNHURRIED_SECONDS = 2.0
"""A connection that has not sent a whole request for this long gives way to a new one."""

REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nRetry-After: 2\r\n"
    b"Connection: close\r\nContent-Length: 53\r\n\r\n"
    b"too many connections are open; try again in a moment\n"
)


def most_connections() -> int:
    """Return how many connections this process has descriptors for, where that is known."""
    try:
        import resource
    except ImportError:  # Windows, where sockets are not limited in this way
        return MOST_CONNECTIONS
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    room = (limit - RESERVED_DESCRIPTORS) // DESCRIPTORS_EACH
    return max(LEAST_CONNECTIONS, min(MOST_CONNECTIONS, room))


class Connections:
    """The open connections, at most `most`. Thread-safe."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._lock = threading.Lock()
        self._n_open = 0
        self._silent: dict[socket.socket, float] = {}
        """Connections without a whole request yet, and when each was accepted; oldest first."""
        self._answered: dict[socket.socket, None] = {}
        """Connections whose answer is sent and whose peer has not closed yet; oldest first."""

    @property
    def n_open(self) -> int:
        return self._n_open

    def admit(self, sock: socket.socket) -> bool:
        """Take in a connection if there is room, or if an answered or silent one can make room."""
        with self._lock:
            if self._n_open >= self.most and not self._give_way():
                return False
            self._n_open += 1
            self._silent[sock] = time.monotonic()
            return True

    def asked(self, sock: socket.socket) -> None:
        """Note that a whole request has come: this connection does not give way any more."""
        with self._lock:
            self._silent.pop(sock, None)

    def answered(self, sock: socket.socket) -> None:
        """Note that the answer is sent: only the peer's end is waited for."""
        with self._lock:
            self._silent.pop(sock, None)
            self._answered[sock] = None

    def left(self, sock: socket.socket) -> None:
        """Forget a connection; call this before `sock` is closed."""
        with self._lock:
            self._silent.pop(sock, None)
            self._answered.pop(sock, None)
            self._n_open -= 1

    def make_room(self) -> None:
        """End an answered or silent connection, because descriptors ran out."""
        with self._lock:
            self._give_way()

    def _give_way(self) -> bool:
        sock = next(iter(self._answered), None)
        if sock is None:
            sock, since = next(iter(self._silent.items()), (None, 0.0))
            if sock is None or time.monotonic() - since < UNHURRIED_SECONDS:
                return False
        self._answered.pop(sock, None)
        self._silent.pop(sock, None)
        hang_up(sock)  # its thread wakes, ends, and counts it as left
        return True


def refuse(sock: socket.socket) -> None:
    """Answer 503 without waiting for anything, and close."""
    try:
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.recv(READ_BYTES)  # bytes left unread would turn the answer into a reset
        with contextlib.suppress(OSError):
            sock.send(REFUSAL)
            sock.shutdown(socket.SHUT_WR)
    finally:
        sock.close()
