"""Cache of the activations that steering and patching use: the residual stream at the last token
of a text.

A text is computed when an intervention first needs it, in pieces between the steps of the runs, and
then cached: a slider that changes a strength computes nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator, Iterator

from gpu.config import ModelConfig
from gpu.engine.recompute import Recomputer
from gpu.interventions.messages import (
    MAX_PATCHES,
    MAX_STEERS,
    NONE_ENCODED,
    EncodedInterventions,
    Ids,
)
from gpu.interventions.resolved import NONE_RESOLVED, ResolvedInterventions, resolve
from gpu.step import Floats, InspectionRequest

MAX_CACHED = 2 * (2 * MAX_STEERS + MAX_PATCHES)
"""Texts in the cache: as many as two sets of interventions can name."""


class ActivationCache:
    """Resolver of interventions: computes the activations that they name, or finds them here.
    `warm` compiles the plans with interventions, a kernel at a time; the first interventions that
    change more than adapters wait for it."""

    def __init__(self, recomputer: Recomputer, config: ModelConfig, warm: Iterator[None]) -> None:
        self._recomputer = recomputer
        self._config = config
        self._warm: Iterator[None] | None = warm
        self._cached: OrderedDict[Ids, Floats] = OrderedDict()

    def resolve_cached(self, encoded: EncodedInterventions) -> ResolvedInterventions | None:
        """Return `encoded` resolved, or None if something has to be computed for it."""
        if encoded is NONE_ENCODED:
            return NONE_RESOLVED
        if encoded.only_loras:
            return self._resolve(encoded, {})
        if self._warm is not None or any(ids not in self._cached for ids in encoded.texts()):
            return None
        return self._resolve(
            encoded, {ids: self._cache(ids, self._cached[ids]) for ids in encoded.texts()}
        )

    def resolve(
        self, encoded: EncodedInterventions
    ) -> Generator[None, None, ResolvedInterventions]:
        """Resolve `encoded` in pieces. Raises QueueFull while the KV cache has no room for a text,
        and InvalidRequest for residual streams that are not finite."""
        if (ready := self.resolve_cached(encoded)) is not None:
            return ready
        while self._warm is not None:
            if next(self._warm, "done") == "done":
                self._warm = None
            yield
        found: dict[Ids, Floats] = {}
        for ids in encoded.texts():
            if ids not in found:
                found[ids] = yield from self._state(ids)
        return self._resolve(encoded, found)

    def _state(self, ids: Ids) -> Generator[None, None, Floats]:
        """Return the residual stream of the last of `ids`, (n_layers + 1, hidden_size)."""
        state = self._cached.get(ids)
        if state is None:
            kept = yield from self._recomputer.inspect(
                list(ids), len(ids) - 1, InspectionRequest(states=True)
            )
            assert kept.states is not None
            state = kept.states[0]
            yield
        return self._cache(ids, state)

    def _cache(self, ids: Ids, state: Floats) -> Floats:
        self._cached[ids] = state
        self._cached.move_to_end(ids)
        while len(self._cached) > MAX_CACHED:
            self._cached.popitem(last=False)
        return state

    def _resolve(
        self, encoded: EncodedInterventions, found: dict[Ids, Floats]
    ) -> ResolvedInterventions:
        resolved = resolve(encoded, found.__getitem__)
        resolved.validate(self._config)
        return resolved
