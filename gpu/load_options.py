"""Interventions that are ready to act, and where they act in a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from gpu.config import ModelConfig
from gpu.interventions import (
    NO_INTERVENTIONS,
    UNTOUCHED,
    Encoded,
    EncodedReached,
    Ids,
    Interventions,
    expect_no_new_patch,
)
from gpu.reach import NOTHING, Course, Reach, Vector
from gpu.step import Floats

State = Callable[[Ids], Floats]
"""(n_layers + 1, hidden_size): the residual stream of a text's last token, before every layer and
after the last."""


@dataclass(frozen=True, slots=True)
class Setting:
    """`told`, with what acts on every token of it, and by position and layer what patches some."""

    told: Interventions = NO_INTERVENTIONS
    reach: Reach = NOTHING
    patches: Mapping[int, Mapping[int, Vector]] = field(default_factory=dict)

    def lay(self, course: Course, first: int, steered: int) -> None:
        """Let it act from position `first` on, its steers from `steered` on."""
        bare = replace(self.reach, steer={})
        edges = {first, max(first, steered)}
        edges |= {edge for at in self.patches for edge in (at, at + 1) if edge >= first}
        for edge in sorted(edges):
            reach = self.reach if edge >= steered else bare
            course.change(edge, replace(reach, patch=self.patches.get(edge, {})))

    def expect(self, config: ModelConfig) -> None:
        """Raises InvalidRequest for vectors that are not numbers."""
        for patch in ({}, *self.patches.values()):
            replace(self.reach, patch=patch).expect(config)


PLAIN = Setting()


def made(wanted: Encoded, state: State) -> Setting:
    """`wanted`, with the states of its texts."""
    told = wanted.told
    steer: dict[int, Vector] = {}
    for entry, toward, away in zip(told.steer, wanted.toward, wanted.away, strict=True):
        vector = state(toward)[entry.layer]
        if away:
            vector = vector - state(away)[entry.layer]
        scaled = np.float32(entry.strength) * vector
        steer[entry.layer] = steer[entry.layer] + scaled if entry.layer in steer else scaled
    patches: dict[int, dict[int, Vector]] = {}
    for patch, ids in zip(told.patch, wanted.patch, strict=True):
        patches.setdefault(patch.position, {})[patch.layer] = state(ids)[patch.layer]
    reach = Reach(
        {(entry.layer, entry.head): entry.factor for entry in told.heads},
        {entry.layer: entry.factor for entry in told.attention},
        {entry.layer: entry.factor for entry in told.mlp},
        steer,
        loras={entry.name: entry.strength for entry in told.loras},
    )
    return Setting(told, reach, patches)


class RunReach:
    """What acts on the tokens of one run.

    wanted  what its prompt was computed under before, then the setting it begins with, then that of
            each change of its script, None for no change
    course  what acts where, of tokens that are computed and to come
    told    the setting in force, as it was asked for
    """

    def __init__(
        self, wanted: tuple[Encoded | None, ...], n_prompt: int, reached: EncodedReached = ()
    ) -> None:
        """`wanted`: without what `reached` says of its prompt."""
        self.wanted = (*(encoded for _, encoded in reached), *wanted)
        self.course = Course()
        self.told = NO_INTERVENTIONS if wanted[0] is None else wanted[0].told
        self._n_prompt = n_prompt
        self._firsts = tuple(first for first, _ in reached)
        self._settings: tuple[Setting | None, ...] | None = None
        self._early: Setting | None = None
        self._in_slot = NOTHING
        if all(one is None or one is UNTOUCHED for one in self.wanted):
            self.settle(tuple(None if one is None else PLAIN for one in self.wanted))

    @property
    def ready(self) -> bool:
        """Is all there that its settings need?"""
        return self._settings is not None

    def settle(self, settings: tuple[Setting | None, ...]) -> None:
        """What was wanted is ready. Before any row is made."""
        n_before, last = len(self._firsts), self._n_prompt - 1
        before, self._settings = settings[:n_before], settings[n_before:]
        for first, setting in zip(self._firsts, before, strict=True):
            if setting is not None:
                setting.lay(self.course, first, first)
        if (own := self._settings[0]) is not None:
            own.lay(self.course, last if n_before else 0, last)
        if self._early is not None:
            self._early.lay(self.course, last, last)

    def of_script(self, n: int) -> Setting | None:
        """Of the n-th change of the script, from 1."""
        assert self._settings is not None, "a run follows its script when it has begun"
        return self._settings[n]

    def change(self, first: int, setting: Setting) -> None:
        """`setting` acts from position `first` on. Raises InvalidRequest for a new patch."""
        expect_no_new_patch(self.told, setting.told)
        self.told = setting.told
        if self.ready:
            setting.lay(self.course, first, first)
        else:
            self._early = setting

    def enter(self, position: int) -> Reach | None:
        """What the slot has to be set to before a step with the row there; None: it is already."""
        reach = self.course.at(position)
        if reach.digest == self._in_slot.digest:
            return None
        self._in_slot = reach
        return reach

    @property
    def acting(self) -> Reach:
        """What the slot is set to."""
        return self._in_slot
