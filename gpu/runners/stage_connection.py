"""Connection between an engine and the process of a stage, or between those of two stages.

It keeps messages whole, and proves at its beginning that both sides have the key.
"""

from __future__ import annotations

import pickle
import socket
import threading
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection
from typing import Any

from gpu.errors import DeviceError
from gpu.stage_hosts import StageAddress

PICKLE = 5
PICKLED = b"\x80\x05"
"""How pickles of this version begin; in msgpack, an empty map and the number 5."""


class StageConnection:
    """One end of a connection. Any thread may send, one receives."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        with _socket_of(connection) as own:
            # Small messages must not wait for each other; a machine that is gone must be noticed.
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    @classmethod
    def connect(cls, name: str, address: StageAddress) -> StageConnection:
        """Connect to the process of stage `name`, and wait until it accepts. Raises DeviceError."""
        try:
            return cls(Client((address.host, address.port), authkey=address.key))
        except (OSError, EOFError, AuthenticationError) as error:
            raise DeviceError(
                f"{name} cannot be reached at {address.host}:{address.port} ({error}); let the "
                "machines of the stages connect to each other on any port"
            ) from None

    def send(self, message: object) -> None:
        """Send a message. Raises OSError if the other end is gone."""
        data = message if isinstance(message, bytes) else pickle.dumps(message, PICKLE)
        with self._lock:
            self._connection.send_bytes(data)

    def receive(self) -> Any:
        """Return the next message; bytes of an encoded one stay as they are. Raises EOFError or
        OSError if the other end is gone."""
        data = self._connection.recv_bytes()
        return pickle.loads(data) if data.startswith(PICKLED) else data

    def hang_up(self) -> None:
        """End the connection; a thread that waits in `receive` is woken."""
        with suppress(OSError), _socket_of(self._connection) as own:
            own.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Free the connection, which nobody uses any more."""
        self._connection.close()


def _socket_of(connection: Connection) -> socket.socket:
    """Return another object for the socket of a connection; closing it leaves that open."""
    return socket.fromfd(connection.fileno(), socket.AF_INET, socket.SOCK_STREAM)
