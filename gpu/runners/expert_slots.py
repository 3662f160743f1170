"""LRU cache of one layer's experts, where the device has no room for all. Host logic only."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Round:
    """Experts that are on the device at the same time. `places`: the slot of each; `loads`: those
    of them that must be brought first."""

    places: dict[int, int]
    loads: tuple[int, ...]


class ExpertSlots:
    """The `n` slots of one layer."""

    def __init__(self, n: int) -> None:
        if n < 1:
            raise ValueError(f"a layer needs one slot for experts or more, not {n}")
        self.n = n
        self._slots: OrderedDict[int, int] = OrderedDict()  # by expert, least recently used first

    def rounds(self, wanted: Sequence[int]) -> list[Round]:
        """How a step comes by the experts it wants, each named once: in one round where they all
        fit, else in several, of which each ends before the next begins. Those that are there come
        first. The slots count as filled from now on."""
        there = [expert for expert in wanted if expert in self._slots]
        order = [*there, *(expert for expert in wanted if expert not in self._slots)]
        return [self._round(order[at : at + self.n]) for at in range(0, len(order), self.n)]

    def _round(self, experts: list[int]) -> Round:
        loads = tuple(expert for expert in experts if expert not in self._slots)
        for expert in experts:
            if expert in self._slots:
                self._slots.move_to_end(expert)
        for expert in loads:
            self._slots[expert] = self._free()
        return Round({expert: self._slots[expert] for expert in experts}, loads)

    def _free(self) -> int:
        """A slot that was never used, or that of the least recently used expert, which goes. There
        is one that this round does not need, because a round has no more experts than slots."""
        if len(self._slots) < self.n:
            return len(self._slots)
        return self._slots.popitem(last=False)[1]
