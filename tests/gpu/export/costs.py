"""Costs in a plan file beside the formulas that they were made of."""

from __future__ import annotations

import math
from typing import Any

from gpu.export.cost_terms import plan_cost
from gpu.export.plan_format import CostTerm
from gpu.export.recording import Recording
from gpu.ops.cost import StepSize
from gpu.plans.cost import cost_of

SIZES = [StepSize(rows, 1, context) for rows, context in ((1, 0), (1, 37), (3, 200), (64, 13))]


def value(terms: tuple[CostTerm, ...], size: StepSize) -> int:
    """Return the sum of terms as docs/plan-format.md says."""
    sizes: dict[str, Any] = {
        "one": lambda: 1,
        "rows": lambda: size.n_rows,
        "samples": lambda: size.n_samples,
        "seen": size.n_seen,
        "cached": size.n_cached,
        "cached_blocks": lambda window, block: math.ceil(size.n_cached(window) / block),
        "splits": size.n_splits,
        "power": lambda base: base**size.n_rows,
    }
    return round(sum(term.coefficient * sizes[term.size](*term.arguments) for term in terms))


def check_costs(recorded: Recording) -> None:
    """Assert that the terms of every dispatch give what its formula gives."""
    dispatches = {id(d): d for plan in recorded.plans for d in plan.plan.dispatches}.values()
    for dispatch in dispatches:
        cost = plan_cost(dispatch)
        assert (cost is None) == (cost_of(dispatch, SIZES[0]) is None), dispatch.label
        if cost is None:
            continue
        for size in SIZES:
            want = cost_of(dispatch, size)
            assert want is not None
            assert value(cost.flops, size) == want.flops, (dispatch.label, size)
            assert value(cost.n_bytes, size) == want.n_bytes, (dispatch.label, size)
