"""Changes of runs, each run's in the order they were asked for.

One whose interventions have to be computed first waits for that, and those after it wait for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from gpu.engine.sequence import Sequence
from gpu.engine.setting import Setting
from gpu.engine.states import LastStates
from gpu.engine.turns import unless
from gpu.errors import EngineError
from gpu.interventions import Encoded, expect_no_new_patch


@dataclass(frozen=True, slots=True)
class Update:
    """The answer is the index of the first token the changes act on."""

    sequence: Sequence
    changes: dict[str, Any]
    capture: bool | None
    reach: Encoded | None = None


Apply = Callable[[Update, Setting | None], int]
"""Lets a change act now; gives the index."""


class Changes:
    def __init__(self, states: LastStates, apply: Apply) -> None:
        self._states = states
        self._apply = apply
        self._waiting: dict[Sequence, deque[tuple[Update, Future[int]]]] = {}

    def take(self, update: Update, index: Future[int]) -> Generator[None, None, None] | None:
        """Carry out a change, or give the pieces of work that will. Raises what `apply` raises."""
        line = self._waiting.get(update.sequence)
        if line is not None:
            line.append((update, index))
            return None
        setting = None
        if update.reach is not None:
            expect_no_new_patch(update.sequence.reach.told, update.reach.told)
            setting = self._states.now(update.reach)
            if setting is None:
                self._waiting[update.sequence] = deque([(update, index)])
                return self._work_off(update.sequence)
        index.set_result(self._apply(update, setting))
        return None

    def refuse(self, error: EngineError) -> None:
        """Answer all that wait with `error`."""
        for line in self._waiting.values():
            while line:
                line.popleft()[1].set_exception(error)

    def _work_off(self, sequence: Sequence) -> Generator[None, None, None]:
        line = self._waiting[sequence]
        while line:
            update, index = line[0]
            try:
                setting = None
                if update.reach is not None:
                    pieces = self._states.setting(update.reach)
                    setting = yield from unless(lambda: sequence.finished, pieces)
                index.set_result(self._apply(update, setting))
            except EngineError as error:
                index.set_exception(error)
            line.popleft()
        del self._waiting[sequence]
