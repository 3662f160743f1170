"""Scheduled updates of a run that have not taken effect yet."""

from __future__ import annotations

from gpu.interventions.resolved import ResolvedInterventions, RunInterventions
from gpu.scheduled_updates import ScheduledUpdate, ScheduledUpdates


class PendingUpdates:
    """Updates in the order of the tokens they act on, with the `interventions` of their run."""

    def __init__(self, updates: ScheduledUpdates, interventions: RunInterventions) -> None:
        self._updates = updates
        self._interventions = interventions
        self._n_taken = 0

    @property
    def next_index(self) -> int | None:
        """Return the first token that the next update acts on; None if there is none."""
        left = self._n_taken < len(self._updates)
        return self._updates[self._n_taken].index if left else None

    def take(self, index: int) -> tuple[ScheduledUpdate, ResolvedInterventions | None] | None:
        """Take the next update, with its interventions if it has any; None if token `index` comes
        before those it acts on, or none is left."""
        if self.next_index is None or self.next_index > index:
            return None
        update = self._updates[self._n_taken]
        self._n_taken += 1
        return update, self._interventions.of_update(self._n_taken)
