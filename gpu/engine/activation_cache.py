"""What steers and patches are made of: the residual stream of the last token of short texts.

Computed when it is asked for, a piece at a time between the steps of the runs, and kept: a slider
that changes a strength computes nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator, Iterator

from gpu.config import ModelConfig
from gpu.engine.lent_rows import LentRows
from gpu.engine.setting import PLAIN, Setting, made
from gpu.interventions import MAX_PATCHES, MAX_STEERS, UNTOUCHED, Encoded, Ids
from gpu.step import Floats, Look

MOST_KEPT = 2 * (2 * MAX_STEERS + MAX_PATCHES)
"""Texts: as many as two settings can name."""


class LastStates:
    """`warm` readies the plans that are reached into, a kernel at a time; the first setting that
    changes more than adapters waits for it."""

    def __init__(self, rows: LentRows, config: ModelConfig, warm: Iterator[None]) -> None:
        self._rows = rows
        self._config = config
        self._warm: Iterator[None] | None = warm
        self._kept: OrderedDict[Ids, Floats] = OrderedDict()

    def now(self, wanted: Encoded) -> Setting | None:
        """The setting, if nothing has to be computed for it; None if something has."""
        if wanted is UNTOUCHED:
            return PLAIN
        if wanted.only_loras:
            return self._made(wanted, {})
        if self._warm is not None or any(ids not in self._kept for ids in wanted.texts()):
            return None
        return self._made(wanted, {ids: self._keep(ids, self._kept[ids]) for ids in wanted.texts()})

    def setting(self, wanted: Encoded) -> Generator[None, None, Setting]:
        """The setting, in pieces. Raises QueueFull while the KV cache has no room for a text, and
        InvalidRequest for states that are not numbers."""
        if (ready := self.now(wanted)) is not None:
            return ready
        while self._warm is not None:
            if next(self._warm, "done") == "done":
                self._warm = None
            yield
        found: dict[Ids, Floats] = {}
        for ids in wanted.texts():
            if ids not in found:
                found[ids] = yield from self._state(ids)
        return self._made(wanted, found)

    def _state(self, ids: Ids) -> Generator[None, None, Floats]:
        """(n_layers + 1, hidden_size)"""
        state = self._kept.get(ids)
        if state is None:
            kept = yield from self._rows.inspect(list(ids), len(ids) - 1, Look(states=True))
            assert kept.states is not None
            state = kept.states[0]
            yield
        return self._keep(ids, state)

    def _keep(self, ids: Ids, state: Floats) -> Floats:
        self._kept[ids] = state
        self._kept.move_to_end(ids)
        while len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        return state

    def _made(self, wanted: Encoded, found: dict[Ids, Floats]) -> Setting:
        setting = made(wanted, found.__getitem__)
        setting.expect(self._config)
        return setting
