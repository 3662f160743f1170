"""Whether the client of a request is still there. If not, `app.openai.choices` cancels its runs,
and `app.http.questions` its questions."""

from __future__ import annotations

import socket
from collections.abc import Callable

import flask

from app.http.sockets import wait_readable


def client_gone() -> Callable[[], bool]:
    """Return a function that tells whether the client of this request has disconnected.

    Without a socket, as in tests, it returns False.
    """
    sock = flask.request.environ.get("werkzeug.socket")

    def gone() -> bool:
        if sock is None:
            return False
        try:
            return wait_readable(sock, 0) and sock.recv(1, socket.MSG_PEEK) == b""
        except (OSError, ValueError):
            return True

    return gone
