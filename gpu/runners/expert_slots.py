"""LRU cache of one layer's experts, for a device without room for all. Host logic only."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ResidentExperts:
    """Experts that are resident at the same time. `places`: the slot of each; `loads`: those that
    must be uploaded first."""

    places: dict[int, int]
    loads: tuple[int, ...]


class ExpertSlots:
    """The `n` expert slots of one layer."""

    def __init__(self, n: int) -> None:
        if n < 1:
            raise ValueError(f"a layer needs one slot for experts or more, not {n}")
        self.n = n
        self._slots: OrderedDict[int, int] = OrderedDict()  # by expert, least recently used first

    def rounds(self, wanted: Sequence[int]) -> list[ResidentExperts]:
        """Return the rounds in which a step uses the experts `wanted`, each named once: one round
        if all fit, else several, each finished before the next begins. Resident experts come first.
        The slots count as filled from now on."""
        there = [expert for expert in wanted if expert in self._slots]
        order = [*there, *(expert for expert in wanted if expert not in self._slots)]
        return [self._round(order[at : at + self.n]) for at in range(0, len(order), self.n)]

    @property
    def held(self) -> tuple[int, ...]:
        """The experts in the slots, the least recently used first."""
        return tuple(self._slots)

    def _round(self, experts: list[int]) -> ResidentExperts:
        loads = tuple(expert for expert in experts if expert not in self._slots)
        for expert in experts:
            if expert in self._slots:
                self._slots.move_to_end(expert)
        for expert in loads:
            self._slots[expert] = self._free()
        return ResidentExperts({expert: self._slots[expert] for expert in experts}, loads)

    def _free(self) -> int:
        """Return a slot that was never used, or that of the least recently used expert, which is
        evicted. This round never needs that expert, because it has no more experts than slots."""
        if len(self._slots) < self.n:
            return len(self._slots)
        return self._slots.popitem(last=False)[1]
