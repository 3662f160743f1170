"""Costs of dispatches as data: what the formulas of `gpu.ops.cost` give for a step of any size.

The formulas are linear in the sizes of a step: rows, samples, keys seen and so on. They are called
with sizes that are symbols, and what comes out is a sum of coefficient × size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from gpu.export.plan_format import CostTerm, PlanCost
from gpu.ops.cost import COSTS, StepSize
from gpu.webgpu.plan import Dispatch

Size = tuple[str, tuple[float, ...]]
"""A size of a step: its name and arguments, as docs/plan-format.md lists them."""
ONE: Size = ("one", ())
ROWS: Size = ("rows", ())


class Terms:
    """A sum of coefficient × size, for the arithmetic of cost formulas. Raises TypeError for what
    is not linear, and for comparisons: a formula may not depend on a size in another way."""

    def __init__(self, terms: Mapping[Size, float]) -> None:
        self.terms = dict(terms)

    def __add__(self, other: Terms | float) -> Terms:
        more = other.terms if isinstance(other, Terms) else {ONE: other}
        sizes = {**self.terms, **more}
        return Terms({size: self.terms.get(size, 0) + more.get(size, 0) for size in sizes})

    __radd__ = __add__

    def __mul__(self, factor: float) -> Terms:
        if isinstance(factor, Terms):
            raise TypeError("a cost is linear in the sizes of a step, but two were multiplied")
        return Terms({size: coefficient * factor for size, coefficient in self.terms.items()})

    __rmul__ = __mul__

    def __truediv__(self, divisor: float) -> Terms:
        return Terms({size: coefficient / divisor for size, coefficient in self.terms.items()})

    def __neg__(self) -> Terms:
        return self * -1

    def __sub__(self, other: Terms | float) -> Terms:
        return self + -other

    def __rsub__(self, other: float) -> Terms:
        return -self + other

    def __floordiv__(self, divisor: int) -> Terms:
        """−cached // block: the negated number of blocks that cached keys take."""
        match list(self.terms.items()):
            case [(("cached", (window,)), -1)]:
                return Terms({("cached_blocks", (window, divisor)): -1})
        raise TypeError("only cached keys are rounded up, to whole blocks: -(-keys // block)")

    def __rpow__(self, base: float) -> Terms:
        if self.terms != {ROWS: 1}:
            raise TypeError("only the number of rows is an exponent")
        return Terms({("power", (base,)): 1})

    def __round__(self) -> Terms:
        return self  # the sum is rounded when the sizes are known

    def __bool__(self) -> bool:
        raise TypeError("a cost formula may not branch on a size of a step")


class SymbolicSize:
    """The sizes of `gpu.ops.cost.StepSize` that formulas ask for, as symbols."""

    def __init__(self) -> None:
        self.n_rows = Terms({ROWS: 1})
        self.n_samples = Terms({("samples", ()): 1})

    def n_seen(self, window: int = 0) -> Terms:
        return Terms({("seen", (window,)): 1})

    def n_cached(self, window: int = 0) -> Terms:
        return Terms({("cached", (window,)): 1})

    def n_splits(self, split: int) -> Terms:
        return Terms({("splits", (split,)): 1})


def plan_cost(dispatch: Dispatch) -> PlanCost | None:
    """Return the cost of a dispatch for any step; None for an op without a formula."""
    formula = COSTS.get(dispatch.kernel.name)
    if formula is None:
        return None
    cost = formula(dispatch, cast(StepSize, SymbolicSize()))
    return PlanCost(_listed(cost.flops), _listed(cost.n_bytes))


def _listed(amount: Any) -> tuple[CostTerm, ...]:
    """Return an amount, which is a number if it depends on no size, as the terms of the file."""
    terms = amount.terms if isinstance(amount, Terms) else {ONE: amount}
    return tuple(CostTerm(c, name, arguments) for (name, arguments), c in terms.items() if c)
