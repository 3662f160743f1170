"""One run of the fake engine."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import msgspec

from gpu import (
    ENDED_IN_PAUSE,
    EngineError,
    Interventions,
    PaceChange,
    Request,
    RunPace,
)
from gpu.engine.run_clock import RunClock
from gpu.events import (
    Event,
    Queued,
    Timings,
    Updated,
)
from gpu.interventions.messages import check_no_new_patch
from gpu.kv.context_shift import ContextShift
from tests.app.fake_options import IN_FLIGHT

if TYPE_CHECKING:
    from tests.app.fake_engine import FakeEngine


class FakeRun:
    """Run; all fields but `pending` and `cancelled` are used by the engine's thread only."""

    def __init__(
        self,
        engine: FakeEngine,
        request: Request,
        story: list[int],
        on_event: Callable[[Event], None],
    ) -> None:
        self.engine = engine
        self.story = story
        self.prompt = list(request.ids)
        self.priority = request.priority
        self.number = 0
        self.position = 0  # in the queue, as it was told
        n_keep, context = request.n_keep, engine.options.context
        self.context_shift = None if n_keep is None else ContextShift(context, n_keep)
        self.params = self.acting = request.params  # requested last; acting on the next token
        self.capture = self.captures = request.capture
        self.pace = RunPace(request.pace, 0)
        self.previewed = False  # the next token, by the settings now
        self.interventions = self.active = request.interventions
        self.updates = deque(request.updates)
        self.on_event = on_event
        self.pending: deque[Updated] = deque()
        self.cancelled = False
        self.message = ""
        self.reused = min(engine.options.reused, len(self.prompt) - 1)
        self.prefilled = self.reused
        self.index = 0
        self.ids = list(request.ids)
        self.undecoded = incomplete_utf8(
            b"".join(map(engine.tokenizer.token_bytes, self.prompt[-4:]))
        )
        self.text = ""
        self.held = ""
        self.clock = RunClock()

    def update(
        self,
        *,
        capture: bool | None = None,
        interventions: Interventions | None = None,
        pace: PaceChange | None = None,
        **changes: Any,
    ) -> int:
        with self.engine.changed:
            index = self.index + self.ahead
            before = self.pace.rate
            if pace is not None:
                self.pace.change(pace, index)
            told = msgspec.UNSET if self.pace.rate == before else self.pace.rate
            has_settings = bool(changes) or capture is not None or interventions is not None
            if has_settings or pace is None or told is not msgspec.UNSET:
                self.change(index, changes, capture, interventions, told)
            self.previewed = self.previewed and not has_settings
            self.engine.changed.notify()
            return index

    def move_to(self, position: int) -> None:
        """Tell the place of a run that waits, if it changed."""
        if position != self.position:
            self.position = position
            self.on_event(Queued(position))

    @property
    def ahead(self) -> int:
        """Return how many tokens are submitted and cannot change."""
        return 0 if self.prefilled < len(self.prompt) or self.pace.limits else IN_FLIGHT

    @property
    def waits(self) -> bool:
        """Return whether a person has to do something first."""
        return self.previewed and not self.pace.may_write(self.index) and not self.cancelled

    def start_update(self, **changes: Any) -> Future[int]:
        index: Future[int] = Future()
        try:
            index.set_result(self.update(**changes))
        except EngineError as error:
            index.set_exception(error)
        return index

    def change(
        self,
        index: int,
        changes: dict[str, Any],
        capture: bool | None,
        interventions: Interventions | None,
        pace: float | msgspec.UnsetType | None = msgspec.UNSET,
    ) -> None:
        self.params = self.params.updated(changes)
        self.capture = self.capture if capture is None else capture
        if interventions is not None:
            self.engine.validator.encode(interventions)
            check_no_new_patch(self.interventions, interventions)
            self.interventions = interventions
        self.pending.append(Updated(index, self.params, self.capture, interventions, pace))
        self.on_event(self.pending[-1])

    def settle(self) -> None:
        """Apply the updates that are due, and report scheduled ones as early as live ones."""
        while self.updates and self.updates[0].index <= self.index + self.ahead:
            change = self.updates.popleft()
            self.change(change.index, change.params, change.capture, change.interventions)
        while self.pending and self.pending[0].index <= self.index:
            due = self.pending.popleft()
            self.acting, self.captures = due.params, due.capture
            self.active = self.active if due.interventions is None else due.interventions

    def cancel(self) -> None:
        with self.engine.changed:
            self.cancelled = True
            self.engine.changed.notify()

    @property
    def paused_since(self) -> float | None:
        """Return when the run was paused or pressed last; None if it writes."""
        return None if self.pace.may_write(self.index) else self.pace.changed_at

    def end_paused(self) -> None:
        """End the run: others need its place."""
        self.message = ENDED_IN_PAUSE
        self.cancel()

    def timings(self) -> Timings:
        return self.clock.timings(self.reused, 0, self.prefilled - self.reused, self.index)


def incomplete_utf8(data: bytes) -> bytes:
    """Return the bytes at the end of `data` that are an incomplete character."""
    for n in (1, 2, 3):
        try:
            data[-n:].decode()
        except UnicodeDecodeError as error:
            if error.reason == "unexpected end of data":
                return data[-n:]
    return b""
