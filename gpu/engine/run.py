"""A request on its way, as its caller sees it."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

from gpu.engine.changes import Update
from gpu.engine.sequence import Sequence
from gpu.engine.thread import Cancel, EngineThread
from gpu.errors import EngineError
from gpu.events import Done, Event, Token
from gpu.interventions import Encoded, Interventions


class Run:
    """A request on its way. Iterating yields its tokens until it ends; then `done` says how."""

    def __init__(
        self,
        engine: EngineThread,
        sequence: Sequence,
        events: Events,
        encode: Callable[[Interventions], Encoded],
    ) -> None:
        self._engine = engine
        self._encode = encode
        self._sequence = sequence
        self._events = events

    @property
    def done(self) -> Done | None:
        return self._events.done

    def update(
        self, *, capture: bool | None = None, reach: Interventions | None = None, **changes: Any
    ) -> int:
        """Change settings from the next token that is not submitted yet on; returns its index.
        `reach` replaces all interventions. What they need is computed first, while the run goes on.

        Raises InvalidRequest for a bad value, and when the run has ended; QueueFull while the KV
        cache has no room for the texts of `reach`."""
        return self.start_update(capture=capture, reach=reach, **changes).result()

    def start_update(
        self, *, capture: bool | None = None, reach: Interventions | None = None, **changes: Any
    ) -> Future[int]:
        """As `update`, without waiting until it acts: what it raises comes through the future, but
        for a bad `reach`, which is refused at once."""
        wanted = None if reach is None else self._encode(reach)
        return self._engine.post(Update(self._sequence, changes, capture, wanted))

    def cancel(self) -> None:
        """End the run; what was written stays. Nothing happens when it has ended already."""
        self._engine.post(Cancel(self._sequence))

    def __iter__(self) -> Iterator[Token]:
        while self.done is None or not self._events.queue.empty():
            event = self._events.queue.get()
            if isinstance(event, Token):
                yield event
        if self.done.reason == "error":
            raise EngineError(self.done.message)


class Events:
    """Where a run's events go: to the caller's function, or into a queue to iterate."""

    def __init__(
        self, on_event: Callable[[Event], None] | None, on_done: Callable[[], None]
    ) -> None:
        self.queue: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.done: Done | None = None
        self._sink = on_event or self.queue.put
        self._on_done = on_done

    def __call__(self, event: Event) -> None:
        if isinstance(event, Done):
            self.done = event
            self._on_done()
        self._sink(event)
