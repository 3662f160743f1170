"""Waiting on a socket that other threads send on, and ending one so that its last bytes arrive."""

from __future__ import annotations

import contextlib
import selectors
import socket
import time

LINGER_SECONDS = 2.0
"""How long a peer may go on sending after the last byte of ours."""
READ_BYTES = 65536

# A poll needs no descriptor of its own, as epoll and kqueue do; Windows has no poll.
_Selector: type[selectors.BaseSelector] = getattr(
    selectors, "PollSelector", selectors.SelectSelector
)


def wait_readable(sock: socket.socket, seconds: float) -> bool:
    """Wait until `sock` has bytes or has ended; False after `seconds` without either.

    The socket's own timeout stays for what is sent: a thread may be sending meanwhile.
    """
    with _Selector() as selector:
        selector.register(sock, selectors.EVENT_READ)
        return bool(selector.select(max(0.0, seconds)))


def finish(sock: socket.socket) -> None:
    """End the sending side, and discard what still comes for `LINGER_SECONDS` at most.

    A socket that is closed with bytes unread resets its connection, and a reset makes the peer
    lose what it had not read yet: the answer to a request that was too large, a close frame.
    """
    end = time.monotonic() + LINGER_SECONDS
    with contextlib.suppress(OSError, ValueError):  # ValueError: closed already
        sock.shutdown(socket.SHUT_WR)
        while wait_readable(sock, end - time.monotonic()):
            if not sock.recv(READ_BYTES) or time.monotonic() > end:
                break


def hang_up(sock: socket.socket) -> None:
    """End both directions at once; threads that read or send on `sock` wake."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
