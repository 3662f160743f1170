"""Clients of a server, good and bad: each visit sends one request and behaves in one way.

A visit returns the text if it stayed to the end, or None if it left before. A server that is full
may refuse it: `Busy`.
"""

from __future__ import annotations

import http.client
import json
import random
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

from tests.app.http.raw_socket import TEXT, RawSocket

TIMEOUT = 60.0
"""Longest silence of the server for a client that reads."""


class Busy(Exception):
    """The server had no room for the request."""


@dataclass(frozen=True)
class Ask:
    """A request, in the names of both APIs."""

    prompt: str
    max_tokens: int
    seed: int
    temperature: float
    capture: bool

    @property
    def params(self) -> dict[str, Any]:
        return {
            "max_tokens": self.max_tokens,
            "seed": self.seed,
            "temperature": self.temperature,
            "ignore_eos": True,
        }


Visit = Callable[[int, Ask, random.Random], str | None]
_names = count()


def http_whole(port: int, ask: Ask, draw: random.Random) -> str | None:
    with _Http(port, ask, stream=False) as response:
        return response.text()


def http_stream(port: int, ask: Ask, draw: random.Random) -> str | None:
    with _Http(port, ask, stream=True) as response:
        return "".join(response.pieces())


def http_times(port: int, ask: Ask) -> list[float]:
    """Return when each piece of a streamed text came, in seconds."""
    with _Http(port, ask, stream=True) as response:
        return [time.monotonic() for _ in response.pieces()]


def http_stream_stalls(port: int, ask: Ask, draw: random.Random) -> str | None:
    """Reads nothing for a while in the middle of its text."""
    with _Http(port, ask, stream=True, buffer=4096) as response:
        pieces = response.pieces()
        text = next(pieces, "")
        time.sleep(draw.uniform(0.2, 1.5))
        return text + "".join(pieces)


def http_stream_vanishes(port: int, ask: Ask, draw: random.Random) -> str | None:
    with _Http(port, ask, stream=True) as response:
        for _, _piece in zip(range(draw.randrange(8)), response.pieces(), strict=False):
            pass
        response.vanish(draw)
    return None


def http_whole_vanishes(port: int, ask: Ask, draw: random.Random) -> str | None:
    with _Http(port, ask, stream=False) as response:
        time.sleep(draw.uniform(0, 0.2))
        response.vanish(draw)
    return None


def half_a_request(port: int, ask: Ask, draw: random.Random) -> str | None:
    """Sends a part of a request and goes: of its head, or of the body that it announced."""
    whole = _request(ask, stream=True)
    with socket.create_connection(("127.0.0.1", port), TIMEOUT) as sock:
        sock.sendall(whole[: draw.randrange(1, len(whole) - 1)])
        time.sleep(draw.uniform(0, 0.3))
        _leave(sock, draw)
    return None


def page(port: int, ask: Ask, draw: random.Random) -> str | None:
    with RawSocket(port) as sock:
        return "".join(_generate(sock, ask))


def page_stalls(port: int, ask: Ask, draw: random.Random) -> str | None:
    with RawSocket(port) as sock:
        pieces = _generate(sock, ask)
        text = next(pieces, "")
        time.sleep(draw.uniform(0.2, 1.5))
        return text + "".join(pieces)


def page_vanishes(port: int, ask: Ask, draw: random.Random) -> str | None:
    with RawSocket(port) as sock:
        for _, _piece in zip(range(draw.randrange(8)), _generate(sock, ask), strict=False):
            pass
        _leave(sock.sock, draw)
    return None


def page_stops(port: int, ask: Ask, draw: random.Random) -> str | None:
    """Stops its generation and stays until it has ended."""
    with RawSocket(port) as sock:
        pieces = _generate(sock, ask, name := f"stops-{next(_names)}")
        next(pieces, "")
        sock.send_message("stop", id=name)
        for _piece in pieces:
            pass
    return None


VISITS: tuple[Visit, ...] = (
    http_whole,
    http_stream,
    http_stream_stalls,
    http_stream_vanishes,
    http_whole_vanishes,
    half_a_request,
    page,
    page_stalls,
    page_vanishes,
    page_stops,
)


class _Http:
    """One request to /v1/completions on a connection of its own. `buffer`: bytes that the client's
    system takes in before the program reads them; None: the usual number."""

    def __init__(self, port: int, ask: Ask, *, stream: bool, buffer: int | None = None) -> None:
        self._sock = socket.socket()
        if buffer is not None:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        self._sock.settimeout(TIMEOUT)
        self._sock.connect(("127.0.0.1", port))
        self._sock.sendall(_request(ask, stream=stream))

    def __enter__(self) -> _Http:
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()

    def text(self) -> str:
        text: str = json.loads(self._response().read())["choices"][0]["text"]
        return text

    def pieces(self) -> Iterator[str]:
        """Yield the text of each message of the stream, which must end with [DONE]."""
        response, last = self._response(), b""
        for line in response:
            if line.startswith(b"data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    yield choice["text"]
            last = line.strip() or last
        assert last == b"data: [DONE]", last

    def vanish(self, draw: random.Random) -> None:
        _leave(self._sock, draw)

    def _response(self) -> http.client.HTTPResponse:
        response = http.client.HTTPResponse(self._sock)
        response.begin()
        if response.status == 429:
            raise Busy
        assert response.status == 200, (response.status, response.read())
        return response


def _request(ask: Ask, *, stream: bool) -> bytes:
    body = json.dumps({"prompt": ask.prompt, "stream": stream, **ask.params}).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _generate(sock: RawSocket, ask: Ask, name: str = "one") -> Iterator[str]:
    """Ask for a text and yield its pieces to the end."""
    sock.wait_ready()
    sock.send_message(
        "generate", id=name, prompt=ask.prompt, params=ask.params, capture=ask.capture
    )
    for opcode, payload in sock.frames():
        if opcode != TEXT:
            continue
        message = json.loads(payload)
        if message["type"] == "error":
            if message["code"] == "queue_full":
                raise Busy
            raise AssertionError(message)
        event = message.get("event", {})
        if event.get("type") == "token":
            yield event["text"]
        elif event.get("type") == "done":
            assert event["reason"] != "error", event
            return
    raise AssertionError("the connection ended before the text")


def _leave(sock: socket.socket, draw: random.Random) -> None:
    """Reset the connection, as a crashed process does, or close it."""
    if draw.random() < 0.5:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
