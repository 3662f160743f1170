"""WebSocket client that behaves like the page in a browser, or misbehaves for a test."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from simple_websocket import Client

from gpu.pace import LEAST_PACE

PATIENCE_S = 60.0
"""Longest wait for a message, or for an engine's process, on a busy machine. Nothing is claimed of
it: what must be quick is measured."""


def wait_until(true: Callable[[], object], seconds: float = PATIENCE_S) -> None:
    """Wait until this holds."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come to hold"
        time.sleep(0.002)


class PageClient(Client):
    """Client with the Host and Origin of a browser; `messages` is everything received."""

    def __init__(self, port: int, cookie: str = "", origin: str | None = "own", **options: Any):
        headers = {}
        if origin is not None:
            headers["Origin"] = f"http://127.0.0.1:{port}" if origin == "own" else origin
        if cookie:
            headers["Cookie"] = cookie
        headers |= options.pop("headers", {})
        self.messages: list[dict[str, Any]] = []
        options.setdefault("thread_class", functools.partial(threading.Thread, daemon=True))
        super().__init__(f"ws://127.0.0.1:{port}/ws", headers=headers, **options)

    def handshake(self) -> None:
        self.host = f"{self.host}:{self.port}"  # simple-websocket omits the port
        super().handshake()
        self._handle_events()  # messages in the same packet as the handshake

    def send_message(self, type: str, **fields: Any) -> None:
        self.send(json.dumps({"type": type, **fields}))

    def next(self, timeout: float = PATIENCE_S) -> dict[str, Any]:
        raw = self.receive(timeout)
        assert raw is not None, f"nothing came within {timeout} s; before: {self.messages[-3:]}"
        message = decode_frame(raw) if isinstance(raw, bytes) else json.loads(raw)
        self.messages.append(message)
        return message

    def until(self, type: str, timeout: float = PATIENCE_S, **fields: Any) -> dict[str, Any]:
        """Wait for the next message (or event) of a type with these fields."""
        end = time.monotonic() + timeout
        while True:
            message = self.next(max(0.01, end - time.monotonic()))
            body = message["event"] if message["type"] == "event" else message
            known = {**message, **body}
            if type in (message["type"], body["type"]) and fields.items() <= known.items():
                return known

    def hold_slot(self, id: str) -> None:
        """Begin a text that holds its slot until it is stopped: it would take an hour."""
        params = {"max_tokens": 480, "ignore_eos": True}
        self.send_message("generate", id=id, prompt="Once", params=params, pace=LEAST_PACE)
        self.until("token")

    def stop(self, id: str) -> None:
        """Stop a text and wait until it has ended."""
        self.send_message("stop", id=id)
        self.until("done", id=id)

    def events(self, id: str) -> Iterator[dict[str, Any]]:
        """Return the events of a generation that were received so far."""
        return (m for m in self.messages if m["type"] == "event" and m["id"] == id)

    def text(self, id: str) -> str:
        return "".join(m["event"].get("text", "") for m in self.events(id))

    def drop(self) -> None:
        """Close the connection without a close frame, as a suspended laptop does."""
        self.connected = False
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)


def decode_frame(frame: bytes) -> dict[str, Any]:
    """Decode a binary message of `app.ws.frames`, with `arrays` as {name: array}."""
    (length,) = struct.unpack_from("<I", frame)
    message: dict[str, Any] = json.loads(frame[4 : 4 + length])
    arrays = {}
    for array in message["arrays"]:
        dtype = {"f32": "<f4", "u32": "<u4"}[array["dtype"]]
        n = math.prod(array["shape"])
        values = np.frombuffer(frame, dtype, n, array["offset"])
        arrays[array["name"]] = values.reshape(array["shape"])
    return {**message, "arrays": arrays}


class LateReader(threading.Thread):
    """`thread_class` of a `PageClient` that reads only after `start_reading`."""

    def start(self) -> None:
        self.daemon = True
        self.start_reading = super().start
