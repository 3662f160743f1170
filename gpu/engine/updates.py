"""Queue of changes to runs; those of one run apply in the order of their requests.

A change whose interventions must be computed first waits for that, and later changes of the run
wait behind it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from gpu.engine.activation_cache import ActivationCache
from gpu.engine.answers import answer, refuse
from gpu.engine.background_tasks import run_until
from gpu.engine.sequence import Sequence
from gpu.errors import EngineError
from gpu.interventions.messages import EncodedInterventions, check_no_new_patch
from gpu.interventions.resolved import ResolvedInterventions
from gpu.pace import PaceChange


@dataclass(frozen=True, slots=True)
class Update:
    """A change to a run. Its result is the index of the first token it acts on."""

    sequence: Sequence
    changes: dict[str, Any]
    capture: bool | None
    interventions: EncodedInterventions | None = None
    pace: PaceChange | None = None


Apply = Callable[[Update, ResolvedInterventions | None], int]
"""Applies a change now; returns that index."""


class UpdateQueue:
    def __init__(self, activations: ActivationCache, apply: Apply) -> None:
        self._activations = activations
        self._apply = apply
        self._waiting: dict[Sequence, deque[tuple[Update, Future[int]]]] = {}

    def submit(self, update: Update, index: Future[int]) -> Generator[None, None, None] | None:
        """Apply a change, or return the generator that will. Raises what `apply` raises."""
        line = self._waiting.get(update.sequence)
        if line is not None:
            line.append((update, index))
            return None
        resolved = None
        if update.interventions is not None:
            check_no_new_patch(
                update.sequence.interventions.requested, update.interventions.requested
            )
            resolved = self._activations.resolve_cached(update.interventions)
            if resolved is None:
                self._waiting[update.sequence] = deque([(update, index)])
                return self._apply_in_order(update.sequence)
        answer(index, self._apply(update, resolved))
        return None

    def refuse(self, error: EngineError) -> None:
        """End all waiting changes with `error`."""
        for line in self._waiting.values():
            while line:
                refuse(line.popleft()[1], error)

    def _apply_in_order(self, sequence: Sequence) -> Generator[None, None, None]:
        line = self._waiting[sequence]
        while line:
            update, index = line[0]
            try:
                resolved = None
                if update.interventions is not None:
                    pieces = self._activations.resolve(update.interventions)
                    resolved = yield from run_until(lambda: sequence.finished, pieces)
                answer(index, self._apply(update, resolved))
            except EngineError as error:
                refuse(index, error)
            line.popleft()
        del self._waiting[sequence]
