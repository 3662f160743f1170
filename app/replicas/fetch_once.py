"""Download of a model for several engines."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from app.models.transfer import Cancelled, Transfer

Fetch = Callable[[Callable[[Transfer], None], Callable[[], bool]], None]
WAIT_SECONDS = 0.2


class FetchOnce:
    """Fetches a model's files for the first engine that asks; the others wait for them."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._lock = threading.Lock()
        self._done = False

    def __call__(self, tell: Callable[[Transfer], None], stopped: Callable[[], bool]) -> None:
        """Return when the files are there. Raises Cancelled when `stopped`, and what the fetch
        raises, to each engine that tries."""
        while not self._lock.acquire(timeout=WAIT_SECONDS):
            if stopped():
                raise Cancelled
        with contextlib.ExitStack() as stack:
            stack.callback(self._lock.release)
            if not self._done:
                self._fetch(tell, stopped)
                self._done = True
