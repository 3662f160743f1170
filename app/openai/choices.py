"""The runs of one request: one for each choice, all of the same prompt.

The first choice reads the prompt. The others start with its first token, because then the keys and
values of the prompt are in the prefix cache. Choice i draws with the first one's seed plus i.
"""

from __future__ import annotations

import contextlib
import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec

from app.engine.client import OnEvent, Run, UnavailableError
from app.http.errors import ClientGoneError
from app.openai.completion_format import FINISH_REASONS
from gpu import (
    CANNOT_FOLLOW,
    SAMPLING_SETTINGS,
    EngineError,
    InvalidRequest,
    Request,
    SamplingParams,
)
from gpu.events import Accepted, Done, Event, Token

PING_SECONDS = 5.0
POLL_SECONDS = 0.1
"""Longest time without an event until the connection of the client is checked."""

Submit = Callable[[Request, OnEvent], Run]
ChoiceEvent = tuple[int, Event]
SEED_BITS = 32
MAX_SEED = int(next(s for s in SAMPLING_SETTINGS if s.name == "seed").declared.range[1])


class Choices:
    """Runs of `n` choices. Create it, call `wait_accepted`, then iterate.

    Iterating yields (choice, event) until all runs have ended, and None after `PING_SECONDS`
    without text, as while a long prompt is read. All runs are cancelled if the client disconnects
    (`gone`, which is asked after every event), if a run is interrupted, or by `cancel`.
    """

    def __init__(
        self,
        submit: Submit,
        request: Request,
        n: int,
        gone: Callable[[], bool],
        check: Callable[[SamplingParams], None] = lambda params: None,
    ) -> None:
        """`check` raises `InvalidRequest` for settings that the runs cannot be changed to."""
        if n > 1 and request.params.seed is None:
            request = _with_seed(request, secrets.randbits(SEED_BITS))
        self._submit = submit
        self._request = request
        self._gone = gone
        self._left = False  # the client was seen to be gone
        self._check = check
        self._n = n
        self._inbox: queue.SimpleQueue[ChoiceEvent] = queue.SimpleQueue()
        self._lock = threading.Lock()
        """Held while a run starts or is changed, so that all of them get a change."""

        self._n_started = 0
        self._running: dict[int, Run] = {}
        self.seed = request.params.seed
        """Seed of the first choice; the engine draws it if a single choice has none."""

        self._start(0)

    def seed_of(self, choice: int) -> int | None:
        """Return the seed of a choice; None before the engine has drawn it."""
        return None if self.seed is None else (self.seed + choice) % (MAX_SEED + 1)

    def wait_accepted(self) -> None:
        """Wait until the engine accepts the first run: until then, an error can have its own HTTP
        status. Raises `UnavailableError` or `ClientGoneError` if the run ends instead."""
        for found in self:
            if found is not None and isinstance(found[1], Accepted):
                return
        raise AssertionError("a run ends with Done")

    def __iter__(self) -> Iterator[ChoiceEvent | None]:
        wrote_at = time.monotonic()
        while self._running:
            found: ChoiceEvent | None = None
            with contextlib.suppress(queue.Empty):
                found = self._inbox.get(timeout=POLL_SECONDS)
            if not self._left and self._gone():
                self._left = True
                self.cancel()
            if found is not None:
                try:
                    self._note(*found)
                except EngineError:
                    self.cancel()
                    raise
                if _is_written(found[1]):
                    wrote_at = time.monotonic()
                yield found
            if time.monotonic() - wrote_at >= PING_SECONDS:
                wrote_at = time.monotonic()
                yield None

    def update(self, **changes: Any) -> dict[int, int]:
        """Change settings of all choices, in any thread. Return, by choice, the index of the first
        token written with the changes; raises what `Run.update` raises."""
        with self._lock:
            params = self._request.params.updated(changes)
            self._check(params)
            self._request = msgspec.structs.replace(self._request, params=params)
            running = list(self._running.items())
            return {choice: run.update(**changes) for choice, run in running}

    def cancel(self) -> None:
        """End all runs, and start no more."""
        self._n = self._n_started
        for run in list(self._running.values()):
            run.cancel()

    def _start(self, choice: int) -> None:
        with self._lock:
            request = _with_seed(self._request, self.seed_of(choice))
            self._running[choice] = self._submit(request, partial(self._receive, choice))
            self._n_started += 1

    def _receive(self, choice: int, event: Event) -> None:
        self._inbox.put((choice, event))

    def _note(self, choice: int, event: Event) -> None:
        """Keep what a run says about itself; start the others once the first has its prompt."""
        if isinstance(event, Accepted) and choice == 0:
            self.seed = event.params.seed
        if isinstance(event, Done):
            del self._running[choice]
            if event.reason not in FINISH_REASONS:
                raise ClientGoneError if self._left else _interrupted(event, self.seed)
        if isinstance(event, Token | Done):
            while self._n_started < self._n:
                self._start(self._n_started)


def _is_written(event: Event) -> bool:
    """Return whether a stream has something to send for `event`."""
    return isinstance(event, Done) or (isinstance(event, Token) and bool(event.text))


def _with_seed(request: Request, seed: int | None) -> Request:
    params = msgspec.structs.replace(request.params, seed=seed)
    return msgspec.structs.replace(request, params=params)


def _interrupted(done: Done, seed: int | None) -> EngineError:
    """Return the error for a run that ended early.

    The server does not keep its text for clients of this API, unlike for pages.
    """
    reason = done.message or "the run was cancelled; the server is shutting down"
    n = done.completion_tokens
    if reason.startswith(CANNOT_FOLLOW):
        return InvalidRequest(
            f"{reason} (after {n} tokens); change the grammar: the same may happen again with it",
            "grammar",
        )
    again = "" if seed is None else f" with seed {seed} to get the same text"
    return UnavailableError(
        f"{reason} (after {n} tokens of this answer, which the server does not keep); "
        f"send the request again{again}"
    )
