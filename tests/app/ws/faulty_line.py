"""Loopback proxy that breaks the WebSockets of a server where a test says so."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import BinaryIO, Literal

Fault = Literal["pass", "cut", "inside", "twice", "bytes"]
"""What happens to a frame: it passes, the connection is cut before or inside it, or it arrives
twice or byte by byte."""
Direction = Literal["up", "down"]
Faults = Callable[[Direction, int, bytes], Fault]
"""Returns the fault of a frame: which way it goes, the number of its WebSocket, and its bytes."""


class FaultyLine(AbstractContextManager["FaultyLine"]):
    """Proxy to the server at `port`."""

    def __init__(self, port: int, faults: Faults) -> None:
        self._server_port = port
        self._faults = faults
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.n_sockets = 0
        """WebSockets so far."""
        self.n_broken = 0
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        """Serve one connection: of a WebSocket, or of HTTP requests."""
        server = socket.create_connection(("127.0.0.1", self._server_port))
        with client, server, client.makefile("rb") as asked, server.makefile("rb") as answered:
            for sock in (client, server):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            head = _head(asked)
            server.sendall(head)
            is_socket = b"upgrade: websocket" in head.lower()
            number, self.n_sockets = self.n_sockets, self.n_sockets + is_socket
            upward = threading.Thread(
                target=self._pass, args=("up", number, asked, server, is_socket), daemon=True
            )
            with contextlib.suppress(OSError):
                client.sendall(_head(answered))
                upward.start()
                self._pass("down", number, answered, client, is_socket)
            _hang_up(client, server)
            if upward.ident is not None:
                upward.join()

    def _pass(
        self, way: Direction, number: int, source: BinaryIO, target: socket.socket, frames: bool
    ) -> None:
        """Pass on what comes until one side ends or the line is cut."""
        with contextlib.suppress(OSError, ValueError):
            for part in _frames(source) if frames else iter(lambda: source.read1(65536), b""):  # type: ignore[attr-defined]
                fault = self._faults(way, number, part) if frames else "pass"
                self.n_broken += fault != "pass"
                if fault in ("cut", "inside"):
                    target.sendall(part[: len(part) // 2 if fault == "inside" else 0])
                    break
                step = 1 if fault == "bytes" else len(part)
                for at in range(0, len(part), step):
                    target.sendall(part[at : at + step])
                if fault == "twice":
                    target.sendall(part)
        _hang_up(target)


def _hang_up(*socks: socket.socket) -> None:
    for sock in socks:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


def _head(source: BinaryIO) -> bytes:
    """Read the head of a request or of an answer."""
    return b"".join(iter(source.readline, b"\r\n")) + b"\r\n"


def _frames(source: BinaryIO) -> Iterator[bytes]:
    """Yield whole WebSocket frames, as they come."""
    while len(head := source.read(2)) == 2:
        longer = {126: 2, 127: 8}.get(head[1] & 0x7F, 0)
        size = source.read(longer)
        n = int.from_bytes(size) if longer else head[1] & 0x7F
        rest = source.read(n + 4 * (head[1] >> 7))  # a mask has 4 bytes
        yield head + size + rest
