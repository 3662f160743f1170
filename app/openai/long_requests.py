"""Turns of requests with long texts. Python code that runs for every token of them slows down all
generations, and many at once would take every connection and a gigabyte of memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from flask import request

from app.engine_client import EngineClient
from app.http.client_limits import place
from gpu import QueueFull

LONG_BYTES = 64 * 1024
"""Size of a body from which a request has to wait for its turn."""
TURN_SECONDS = 10.0

_turns = threading.Lock()


@contextmanager
def turn_to_read(engine: EngineClient) -> Iterator[None]:
    """Let a long request wait its turn, and count it as a run of its client. Raises QueueFull."""
    if len(request.get_data()) < LONG_BYTES:
        yield
        return
    with turn(engine):
        yield


@contextmanager
def turn(engine: EngineClient) -> Iterator[None]:
    """Let a request wait its turn, however short it is. Raises QueueFull."""
    with place(engine):
        if not _turns.acquire(timeout=TURN_SECONDS):
            raise QueueFull("too many long texts are being read; try again in a moment")
        try:
            yield
        finally:
            _turns.release()
