"""The runs of one request: one for each choice, `n` of each prompt.

The first choice of a prompt reads it. The others start with its first token, because then the keys
and values of the prompt are in the prefix cache. Choice i of a prompt draws with the first one's
seed plus i. Choices are numbered prompt by prompt.
"""

from __future__ import annotations

import contextlib
import queue
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec

from app.engine_client import OnEvent, Run, UnavailableError
from app.http.errors import ClientGoneError
from app.openai.completion_format import FINISH_REASONS
from gpu import (
    CANNOT_FOLLOW,
    SAMPLING_SETTINGS,
    EngineError,
    InvalidRequest,
    QueueFull,
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
    """Runs of `n` choices of each prompt. Create it, call `wait_accepted`, then iterate.

    The first one is refused if there is no room for it. Another one waits for room then: until a
    run of this request ends, and for longer if somebody else was given that place.

    Iterating yields (choice, event) until all runs have ended, and None after `PING_SECONDS`
    without text, as while a long prompt is read. All runs are cancelled if the client disconnects
    (`gone`, which is asked after every event), if a run is interrupted, or by `cancel`.
    """

    def __init__(
        self,
        submit: Submit,
        requests: Sequence[Request],
        n: int,
        gone: Callable[[], bool],
        check: Callable[[SamplingParams], None] = lambda params: None,
    ) -> None:
        """`requests`: one for each prompt, with the same settings. `check` raises `InvalidRequest`
        for settings that the runs cannot be changed to."""
        self.seed = requests[0].params.seed
        """Seed of the first choice; the engine draws it if a single choice has none."""

        if n * len(requests) > 1 and self.seed is None:
            self.seed = secrets.randbits(SEED_BITS)
        self._submit = submit
        self._requests = list(requests)
        self._gone = gone
        self._left = False  # the client was seen to be gone
        self._check = check
        self.n = n
        self._inbox: queue.SimpleQueue[ChoiceEvent] = queue.SimpleQueue()
        self._lock = threading.Lock()
        """Held while a run starts or is changed, so that all of them get a change."""

        self._running: dict[int, Run] = {}
        self._n_started = 0
        self._ready = deque(range(0, n * len(requests), n))
        """Choices that can start: the first of each prompt, and those whose prompt was read."""

        self._read: set[int] = set()  # prompts
        try:
            self._start_ready()
        except EngineError:
            self.cancel()
            raise

    def seed_of(self, choice: int) -> int | None:
        """Return the seed of a choice; None before the engine has drawn it."""
        return None if self.seed is None else (self.seed + choice % self.n) % (MAX_SEED + 1)

    def wait_accepted(self) -> None:
        """Wait until the engine accepts the first run: until then, an error can have its own HTTP
        status. Raises `UnavailableError` or `ClientGoneError` if the run ends instead."""
        for found in self:
            if found is not None and isinstance(found[1], Accepted):
                return
        raise AssertionError("a run ends with Done")

    def __iter__(self) -> Iterator[ChoiceEvent | None]:
        wrote_at = time.monotonic()
        while self._running or self._ready:
            found: ChoiceEvent | None = None
            with contextlib.suppress(queue.Empty):
                found = self._inbox.get(timeout=POLL_SECONDS)
            if not self._left and self._gone():
                self._left = True
                self.cancel()
                if not self._running:
                    raise ClientGoneError
            try:
                if found is not None:
                    self._note(*found)
                elif not self._running:
                    self._start_ready()
            except EngineError:
                self.cancel()
                raise
            if found is not None:
                if _is_written(found[1]):
                    wrote_at = time.monotonic()
                yield found
            if time.monotonic() - wrote_at >= PING_SECONDS:
                wrote_at = time.monotonic()
                yield None

    def update(self, **changes: Any) -> dict[int, int]:
        """Change settings of all choices, in any thread. Return, by choice that is being written,
        the index of the first token written with the changes. Raises what `Run.update` raises, but
        InvalidRequest only if no choice takes the changes."""
        with self._lock:
            params = self._requests[0].params.updated(changes)
            self._check(params)
            self._requests = [msgspec.structs.replace(r, params=params) for r in self._requests]
            changed, refused = {}, None
            for choice, run in list(self._running.items()):
                try:
                    changed[choice] = run.update(**changes)
                except InvalidRequest as error:  # it has ended, and its Done is in the inbox
                    refused = error
            all_started = self._n_started == self.n * len(self._requests)
            if refused is not None and all_started and not changed:
                raise refused
            return changed

    def cancel(self) -> None:
        """End all runs, and start no more."""
        self._ready.clear()
        self._read.update(range(len(self._requests)))
        for run in list(self._running.values()):
            run.cancel()

    def _start_ready(self) -> None:
        """Start the choices that can start, in their order, while there is room. Raises QueueFull
        if there is none for the first."""
        with self._lock:
            while self._ready:
                choice = self._ready.popleft()
                request = _with_seed(self._requests[choice // self.n], self.seed_of(choice))
                try:
                    run = self._submit(request, partial(self._receive, choice))
                except QueueFull:
                    if not self._n_started:
                        raise
                    self._ready.appendleft(choice)
                    return
                self._running[choice] = run
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
            self._note_read(choice // self.n)
        if isinstance(event, Done):
            self._start_ready()

    def _note_read(self, prompt: int) -> None:
        """Start the other choices of a prompt that has been read."""
        if prompt not in self._read:
            self._read.add(prompt)
            first = prompt * self.n
            self._ready.extendleft(range(first + self.n - 1, first, -1))
            self._start_ready()


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
