"""Run of a request, as its caller sees it."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

from gpu.engine.sequence import Sequence
from gpu.engine.thread import Cancel, EndPaused, EngineThread
from gpu.engine.updates import Update
from gpu.errors import EngineError
from gpu.events import Done, Event, Token
from gpu.interventions.messages import EncodedInterventions, Interventions
from gpu.pace import PaceChange


class Run:
    """Run of a request. Iterating yields its tokens; afterwards `done` says how it ended."""

    def __init__(
        self,
        engine: EngineThread,
        sequence: Sequence,
        events: EventReceiver,
        encode: Callable[[Interventions], EncodedInterventions],
    ) -> None:
        self._engine = engine
        self._encode = encode
        self._sequence = sequence
        self._events = events

    @property
    def done(self) -> Done | None:
        return self._events.done

    @property
    def paused_since(self) -> float | None:
        """Time of the last press or change of pace if the run is paused now, else None."""
        return self._sequence.paused_since

    def update(
        self,
        *,
        capture: bool | None = None,
        interventions: Interventions | None = None,
        pace: PaceChange | None = None,
        **changes: Any,
    ) -> int:
        """Change settings, beginning with the first token that is not submitted yet; return its
        index. `interventions` replaces all interventions; what they need is computed first, while
        the run continues. A run that is paused writes its next token by the changed settings.

        Raises InvalidRequest for a bad value, and when the run has ended; QueueFull while the KV
        cache has no room for the texts of `interventions`."""
        return self.start_update(
            capture=capture, interventions=interventions, pace=pace, **changes
        ).result()

    def start_update(
        self,
        *,
        capture: bool | None = None,
        interventions: Interventions | None = None,
        pace: PaceChange | None = None,
        **changes: Any,
    ) -> Future[int]:
        """Start `update` and return at once. The future raises its errors, except for invalid
        `interventions` and `pace`, which are refused at once."""
        wanted = None if interventions is None else self._encode(interventions)
        if pace is not None:
            pace.validate()
        return self._engine.post(Update(self._sequence, changes, capture, wanted, pace))

    def cancel(self) -> None:
        """End the run; its text so far stays. Has no effect on a run that has ended."""
        self._engine.post(Cancel(self._sequence))

    def end_paused(self) -> None:
        """End the run if it is paused: others need its place."""
        self._engine.post(EndPaused(self._sequence))

    def __iter__(self) -> Iterator[Token]:
        while self.done is None or not self._events.queue.empty():
            event = self._events.queue.get()
            if isinstance(event, Token):
                yield event
        if self.done.reason == "error":
            raise EngineError(self.done.message)


class EventReceiver:
    """Receiver of a run's events: the caller's function, or a queue to iterate."""

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
