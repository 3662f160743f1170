"""Log of the latest steps, kept while somebody reads it: whose rows ran, what was drafted and
accepted, and which runs waited."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile

from gpu.engine.sequence import Sequence
from gpu.engine.step_builder import Scheduled
from gpu.inspection.requests import StepPart
from gpu.inspection.steps import RunRows, StepRecord
from gpu.step import StepResult

MAX_STEPS = 512
"""Most steps that are kept."""
WATCH_SECONDS = 5.0
"""Steps are recorded for this long after they were read."""


@dataclass(frozen=True, slots=True)
class _InFlight:
    """A submitted step, and the runs that waited then."""

    scheduled: Scheduled
    waiting: tuple[RunRows, ...]


class StepLog:
    """Records steps only while it is read, so that it costs nothing otherwise. `clock`: seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._watched_until = 0.0
        self._in_flight: deque[_InFlight] = deque()
        self._steps: deque[StepRecord] = deque(maxlen=MAX_STEPS)
        self._n = 0

    def read(self, after: int) -> list[StepRecord]:
        """Return the steps whose number is greater than `after`, and go on recording."""
        self._watched_until = self._clock() + WATCH_SECONDS
        return [step for step in self._steps if step.number > after]

    def submitted(self, scheduled: Scheduled, waiting: Iterable[Sequence]) -> None:
        """Note a step that is submitted while these sequences wait."""
        if self._clock() < self._watched_until:
            parts = tuple(_waiting_part(sequence) for sequence in waiting)
            self._in_flight.append(_InFlight(scheduled, parts))

    def collected(self, scheduled: Scheduled, result: StepResult, ms: float) -> None:
        """Record a step whose result was read; it took `ms`."""
        if not self._in_flight or self._in_flight[0].scheduled is not scheduled:
            return
        waiting = self._in_flight.popleft().waiting
        self._n += 1
        parts = (*_parts(scheduled, result), *waiting)
        self._steps.append(StepRecord(self._n, ms, parts))


def _waiting_part(sequence: Sequence) -> RunRows:
    kind = StepPart.PREEMPTED if sequence.n_preemptions else StepPart.WAITING
    return RunRows(sequence.number, kind, 0, 0)


def _parts(scheduled: Scheduled, result: StepResult) -> Iterator[RunRows]:
    """Yield the rows of each sequence. The first sample of a prompt comes from its chunk."""
    chunked = {chunk.sequence for chunk in scheduled.chunks}
    for chunk in scheduled.chunks:
        yield RunRows(chunk.sequence.number, StepPart.PREFILL, chunk.n, 0)
    first = 0
    for sequence, drafts in zip(scheduled.samplers, scheduled.drafts, strict=True):
        sampled = [result.samples[first + i].id for i in range(len(drafts))]
        first += 1 + len(drafts)
        if sequence in chunked:
            continue
        pairs = zip(drafts, sampled, strict=True)
        n_accepted = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        yield RunRows(sequence.number, StepPart.DECODE, 1 + len(drafts), n_accepted)
