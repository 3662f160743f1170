"""Resolved interventions, ready to act, and the interventions of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from gpu.config import ModelConfig
from gpu.interventions.active import NONE_ACTIVE, ActiveInterventions, InterventionSchedule, Vector
from gpu.interventions.messages import (
    NO_INTERVENTIONS,
    NONE_ENCODED,
    EncodedInterventions,
    EncodedSpans,
    Ids,
    Interventions,
    check_no_new_patch,
)
from gpu.step import Floats

LastState = Callable[[Ids], Floats]
"""Returns the residual stream of a text's last token before every layer and after the last,
(n_layers + 1, hidden_size)."""


@dataclass(frozen=True, slots=True)
class ResolvedInterventions:
    """`requested` with its vectors: `active` acts on every token, `patches` on one each, by
    position and layer."""

    requested: Interventions = NO_INTERVENTIONS
    active: ActiveInterventions = NONE_ACTIVE
    patches: Mapping[int, Mapping[int, Vector]] = field(default_factory=dict)

    def add_to(self, schedule: InterventionSchedule, first: int, steered: int) -> None:
        """Add them to `schedule` from position `first` on, their steers from `steered` on."""
        bare = replace(self.active, steer={})
        edges = {first, max(first, steered)}
        edges |= {edge for at in self.patches for edge in (at, at + 1) if edge >= first}
        for edge in sorted(edges):
            active = self.active if edge >= steered else bare
            schedule.change(edge, replace(active, patch=self.patches.get(edge, {})))

    def with_patches_of(self, now: Interventions) -> ResolvedInterventions:
        """Return these without the patches that `now` does not have."""
        requested = self.requested.with_patches_of(now)
        patches: dict[int, dict[int, Vector]] = {}
        for one in requested.patch:
            vector = self.patches[one.position][one.layer]
            patches.setdefault(one.position, {})[one.layer] = vector
        return replace(self, requested=requested, patches=patches)

    def validate(self, config: ModelConfig) -> None:
        """Raise InvalidRequest for vectors that are not finite."""
        for patch in ({}, *self.patches.values()):
            replace(self.active, patch=patch).validate(config)


NONE_RESOLVED = ResolvedInterventions()


def resolve(encoded: EncodedInterventions, last_state: LastState) -> ResolvedInterventions:
    """Return `encoded` with the vectors computed from its texts."""
    requested = encoded.requested
    steer: dict[int, Vector] = {}
    for entry, toward, away in zip(requested.steer, encoded.toward, encoded.away, strict=True):
        vector = last_state(toward)[entry.layer]
        if away:
            vector = vector - last_state(away)[entry.layer]
        scaled = np.float32(entry.strength) * vector
        steer[entry.layer] = steer[entry.layer] + scaled if entry.layer in steer else scaled
    patches: dict[int, dict[int, Vector]] = {}
    for patch, ids in zip(requested.patch, encoded.patch, strict=True):
        patches.setdefault(patch.position, {})[patch.layer] = last_state(ids)[patch.layer]
    active = ActiveInterventions(
        {(entry.layer, entry.head): entry.factor for entry in requested.heads},
        {entry.layer: entry.factor for entry in requested.attention},
        {entry.layer: entry.factor for entry in requested.mlp},
        steer,
        loras={entry.name: entry.strength for entry in requested.loras},
        experts_off=[(entry.layer, entry.expert) for entry in requested.experts],
    )
    return ResolvedInterventions(requested, active, patches)


class RunInterventions:
    """Interventions of one run.

    encoded    those of `spans`, under which the prompt was computed, then the first setting, then
               that of each scheduled update; None for an update that changes nothing
    schedule   what acts on the tokens that are computed and on those to come
    requested  the setting in force, as it was requested
    """

    def __init__(
        self,
        encoded: tuple[EncodedInterventions | None, ...],
        n_prompt: int,
        spans: EncodedSpans = (),
    ) -> None:
        """`encoded`: the first setting and those of updates, without `spans`."""
        self.encoded = (*(encoded for _, encoded in spans), *encoded)
        self.schedule = InterventionSchedule()
        self.requested = NO_INTERVENTIONS if encoded[0] is None else encoded[0].requested
        self._n_prompt = n_prompt
        self._firsts = tuple(first for first, _ in spans)
        self._all_resolved: tuple[ResolvedInterventions | None, ...] | None = None
        self._pending: tuple[int, ResolvedInterventions] | None = None
        self._in_slot = NONE_ACTIVE
        if all(one is None or one is NONE_ENCODED for one in self.encoded):
            self.set_resolved(tuple(None if one is None else NONE_RESOLVED for one in self.encoded))

    @property
    def ready(self) -> bool:
        """Return whether all states that the interventions need are computed."""
        return self._all_resolved is not None

    def set_resolved(self, all_resolved: tuple[ResolvedInterventions | None, ...]) -> None:
        """Set the resolved interventions. To be called before any row is made."""
        n_before, last = len(self._firsts), self._n_prompt - 1
        before, self._all_resolved = all_resolved[:n_before], all_resolved[n_before:]
        for first, resolved in zip(self._firsts, before, strict=True):
            if resolved is not None:
                resolved.add_to(self.schedule, first, first)
        if (own := self._all_resolved[0]) is not None:
            own.add_to(self.schedule, last if n_before else 0, last)
        if self._pending is not None:
            first, resolved = self._pending
            resolved.add_to(self.schedule, first, first)

    def act_last(self) -> None:
        """Let what was changed before the states were computed act after what has been changed
        since."""
        if self._pending is not None:
            first, resolved = self._pending
            self._pending, self.requested = None, resolved.requested
            resolved.add_to(self.schedule, first, first)

    def of_update(self, n: int) -> ResolvedInterventions | None:
        """Return the interventions of the n-th scheduled update, from 1. Patches that a live change
        has dropped stay dropped: their tokens are computed already."""
        assert self._all_resolved is not None, "scheduled updates act after the run has begun"
        resolved = self._all_resolved[n]
        return None if resolved is None else resolved.with_patches_of(self.requested)

    def change(self, first: int, resolved: ResolvedInterventions) -> None:
        """Let `resolved` act from position `first` on. Raises InvalidRequest for a new patch."""
        check_no_new_patch(self.requested, resolved.requested)
        self.requested = resolved.requested
        if self.ready:
            resolved.add_to(self.schedule, first, first)
        else:
            self._pending = first, resolved

    def move_to(self, position: int) -> ActiveInterventions | None:
        """Return what the slot must be set to before a step with the row at `position`; None: no
        change."""
        active = self.schedule.at(position)
        if active.digest == self._in_slot.digest:
            return None
        self._in_slot = active
        return active

    def leave_slot(self) -> None:
        """Forget what the slot was set to: the next one starts with none."""
        self._in_slot = NONE_ACTIVE

    @property
    def active(self) -> ActiveInterventions:
        """Interventions that the slot is set to."""
        return self._in_slot
