"""Reading of one HTTP request, with limits on time and size and an unambiguous end of its body.

The timeout of http.server starts again with every byte, so a client that sends one byte a minute
would occupy a thread for ever. werkzeug's reader of chunked bodies is for development only: if a
chunk ends early, it returns uninitialised memory up to the announced length.
"""

from __future__ import annotations

import http.client
import io
import re
import socket
import time
from collections.abc import Callable
from email.message import Message
from typing import TYPE_CHECKING

from werkzeug.exceptions import BadRequest, RequestEntityTooLarge

from app.http.sockets import wait_readable

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

HEAD_SECONDS = 15.0
"""Deadline of the request line and all headers together."""
HEAD_BYTES = 128 * 1024
BODY_SECONDS = 60.0
"""Deadline of the whole body, which has at most 1 MiB, or what its route allows."""
CHUNK_LINE_BYTES = 100
"""Longest line before a chunk: its length and an optional extension."""

CHUNK_LENGTH = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(;[^\r\n]*)?\r?\n")
CONTENT_LENGTH = re.compile(r"[0-9]{1,18}")


class RequestReader(io.RawIOBase):
    """Raw reader of a socket, with a deadline for the head and then one for the body."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._end = time.monotonic() + HEAD_SECONDS
        self._head_left: int | None = HEAD_BYTES
        self.blocking = True
        """Whether to wait for bytes. If False, only buffered bytes are returned."""

    def readable(self) -> bool:
        return True

    def end_head(self) -> None:
        """Apply the limits of the body from now on."""
        self._end = time.monotonic() + BODY_SECONDS
        self._head_left = None

    def readinto(self, buffer: WriteableBuffer) -> int | None:
        """Raises `TimeoutError` after the deadline, `HTTPException` for too long a head."""
        if not self.blocking:
            return None
        left = self._end - time.monotonic()
        if left <= 0 or not wait_readable(self._sock, left):
            raise TimeoutError("the request took too long")
        n = self._sock.recv_into(buffer)
        if self._head_left is not None:
            self._head_left -= n
            if self._head_left < 0:  # http.server answers 431, as for too many headers
                raise http.client.HTTPException(f"more than {HEAD_BYTES} bytes of headers")
        return n


class RequestStream(io.BufferedReader):
    """Buffered `RequestReader` that notices the end of the request."""

    raw: RequestReader

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(RequestReader(sock))
        self._body_left: int | None = None
        self._on_whole: Callable[[], None] = lambda: None

    def end_head(self, body_bytes: int | None, on_whole: Callable[[], None]) -> None:
        """Begin the body. `body_bytes` is its length, None if it is chunked. `on_whole` is called
        when the whole request has been read."""
        self.raw.end_head()
        self._body_left, self._on_whole = body_bytes, on_whole
        if body_bytes == 0:
            on_whole()

    def end_body(self) -> None:
        """Call `on_whole`: the last byte of the request was read."""
        self._on_whole()

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        n = super().readinto(buffer)
        if self._body_left is not None and n:
            self._body_left -= n
            if self._body_left <= 0:
                self.end_body()
        return n

    def read(self, size: int | None = -1, /) -> bytes:
        """Return nothing: bodies are read with `readinto`.

        Only werkzeug calls this, to discard the rest of a body after its response, 10 MB at a
        time; here `app.http.sockets.finish` does that."""
        return b""

    def read_ahead(self) -> bytes:
        """Return the bytes that are buffered. Nothing can be read after this."""
        self.raw.blocking = False
        return self.peek()


class ChunkedBody(io.RawIOBase):
    """Body in chunked encoding, read as a whole at its first read.

    Reads raise `RequestEntityTooLarge` above `max_bytes` and `BadRequest` for an invalid body.
    A route that takes more sets `max_bytes` before the first.
    """

    def __init__(self, stream: RequestStream, max_bytes: int) -> None:
        self._stream = stream
        self.max_bytes = max_bytes
        self._body: io.BytesIO | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        if self._body is None:
            self._body = io.BytesIO(self._read_all())
        return self._body.readinto(buffer)

    def _read_all(self) -> bytes:
        body = bytearray()
        try:
            while n := self._chunk_bytes():
                if len(body) + n > self.max_bytes:
                    raise RequestEntityTooLarge
                body += self._read_exactly(n)
                if self._stream.readline(2) not in (b"\r\n", b"\n"):
                    raise BadRequest("invalid chunked body: expected a line end after each chunk")
            while self._stream.readline(CHUNK_LINE_BYTES) not in (b"\r\n", b"\n", b""):
                pass  # trailers are not used; the deadline limits them
        except TimeoutError:
            raise BadRequest(f"the request body did not arrive within {BODY_SECONDS:g} s") from None
        self._stream.end_body()
        return bytes(body)

    def _chunk_bytes(self) -> int:
        line = self._stream.readline(CHUNK_LINE_BYTES)
        match = CHUNK_LENGTH.fullmatch(line)
        if match is None:
            raise BadRequest("invalid chunked body: expected the length of a chunk in hexadecimal")
        return int(match.group(1), 16)

    def _read_exactly(self, n: int) -> bytearray:
        chunk = bytearray(n)
        view = memoryview(chunk)
        at = 0
        while at < n:
            got = self._stream.readinto(view[at:])
            if not got:
                raise BadRequest("invalid chunked body: it ended in the middle of a chunk")
            at += got
        return chunk


def framing_problem(headers: Message) -> str | None:
    """Return why the end or the host of this request is ambiguous; None if neither is.

    A proxy could read an ambiguous request differently: this is request smuggling.
    """
    lengths = headers.get_all("Content-Length", [])
    encodings = headers.get_all("Transfer-Encoding", [])
    if headers.defects:
        return "every header line must have the form Name: value"
    if len(headers.get_all("Host", [])) > 1:
        return "more than one Host header; send one"
    if lengths and encodings:
        return "both Content-Length and Transfer-Encoding; send one of them"
    if len(lengths) > 1:
        return "more than one Content-Length; send one"
    if lengths and not CONTENT_LENGTH.fullmatch(lengths[0]):
        return "Content-Length must be a number of bytes"
    if encodings and [encoding.strip().lower() for encoding in encodings] != ["chunked"]:
        return "Transfer-Encoding must be chunked, or left out"
    return None
