"""WebSocket client of raw bytes, for sending what no real client would send."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

TEXT, BINARY, CLOSE, PING = 1, 2, 8, 9
KEY = "dGhlIHNhbXBsZSBub25jZQ=="


def handshake(port: int, *lines: str) -> bytes:
    """Return the upgrade request of a browser, with changed headers."""
    return "\r\n".join(
        [
            "GET /ws HTTP/1.1",
            f"Host: 127.0.0.1:{port}",
            f"Origin: http://127.0.0.1:{port}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            "Sec-WebSocket-Version: 13",
            f"Sec-WebSocket-Key: {KEY}",
            *lines,
            "\r\n",
        ]
    ).encode()


def frame(opcode: int, payload: bytes = b"", *, fin: bool = True, bits: int = 0) -> bytes:
    """Return a masked frame. `bits` are the reserved bits."""
    head = bytes([fin << 7 | bits << 4 | opcode])
    n = len(payload)
    if n < 126:
        head += bytes([0x80 | n])
    elif n < 2**16:
        head += struct.pack("!BH", 0x80 | 126, n)
    else:
        head += struct.pack("!BQ", 0x80 | 127, n)
    return head + bytes(4) + payload  # a mask of zeros changes nothing


class RawSocket(AbstractContextManager["RawSocket"]):
    """Connection after the handshake. `early` is sent in the same packet as the handshake."""

    def __init__(self, port: int, early: bytes = b"", cookie: str = "") -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=20)
        lines = [f"Cookie: {cookie}"] if cookie else []
        self.sock.sendall(handshake(port, *lines) + early)
        self._read = b""
        while b"\r\n\r\n" not in self._read:
            self._more()
        head, _, self._read = self._read.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 "), head

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def send_message(self, type: str, **fields: Any) -> None:
        self.send(frame(TEXT, json.dumps({"type": type, **fields}).encode()))

    def wait_ready(self) -> None:
        for opcode, payload in self.frames():
            if opcode == TEXT and json.loads(payload).get("state") == "ready":
                return
        raise AssertionError("the line ended before the engine was ready")

    def end(self) -> int | None:
        """Return the code of the server's close frame, after which nothing may follow; None if
        there was none."""
        for opcode, payload in self.frames():
            if opcode == CLOSE:
                rest = self._read + self._all()
                assert rest == b"", f"after the close frame came {rest[:200]!r}"
                return int(struct.unpack("!H", payload[:2])[0]) if payload else 1005
        return None

    def frames(self) -> Iterator[tuple[int, bytes]]:
        """Yield the frames of the server until the connection ends."""
        while (first := self._take(2)) is not None:
            assert not first[1] & 0x80, "a server does not mask"
            n = first[1]
            if n == 126:
                n = struct.unpack("!H", self._take(2) or b"")[0]
            elif n == 127:
                n = struct.unpack("!Q", self._take(8) or b"")[0]
            payload = self._take(n)
            if payload is None:
                return
            yield first[0] & 0x0F, payload

    def reset(self) -> None:
        """Reset the connection, as a crashed process does."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def _take(self, n: int) -> bytes | None:
        while len(self._read) < n:
            if not self._more():
                return None
        taken, self._read = self._read[:n], self._read[n:]
        return taken

    def _more(self) -> bool:
        data = self.sock.recv(65536)
        self._read += data
        return bool(data)

    def _all(self) -> bytes:
        found = b""
        while data := self.sock.recv(65536):
            found += data
        return found


def n_descriptors() -> int:
    """Return the number of open descriptors of this process; 0 without /proc."""
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
