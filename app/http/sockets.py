"""Helpers for sockets: wait until readable, and close so that the last bytes sent arrive."""

from __future__ import annotations

import contextlib
import selectors
import socket
import time

LINGER_SECONDS = 2.0
"""Time that a peer may go on sending after our last byte."""
READ_BYTES = 65536

# poll needs no file descriptor of its own, unlike epoll and kqueue. Windows has no poll.
_Selector: type[selectors.BaseSelector] = getattr(
    selectors, "PollSelector", selectors.SelectSelector
)


def wait_readable(sock: socket.socket, seconds: float) -> bool:
    """Wait until `sock` has bytes or is closed; return False after `seconds`.

    The socket's own timeout is not changed: another thread may be sending.
    """
    with _Selector() as selector:
        selector.register(sock, selectors.EVENT_READ)
        return bool(selector.select(max(0.0, seconds)))


def finish(sock: socket.socket) -> None:
    """Shut down the sending side and discard incoming bytes for at most `LINGER_SECONDS`.

    close() with unread bytes resets the connection. A reset makes the peer lose what it has not
    read yet: the response to a request that was too large, or a close frame.
    """
    end = time.monotonic() + LINGER_SECONDS
    with contextlib.suppress(OSError, ValueError):  # ValueError: closed already
        sock.shutdown(socket.SHUT_WR)
        while wait_readable(sock, end - time.monotonic()):
            if not sock.recv(READ_BYTES) or time.monotonic() > end:
                break


def hang_up(sock: socket.socket) -> None:
    """Shut down both directions; threads that read or send on `sock` wake up."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
