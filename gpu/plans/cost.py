"""Cost of a plan: the sum of its dispatches, by the formulas of the ops (`gpu.ops.cost`)."""

from __future__ import annotations

from gpu.errors import InvalidRequest
from gpu.info import RunnerLimits
from gpu.ops.cost import COSTS, Cost, StepSize
from gpu.webgpu.plan import Dispatch, Plan


def step_size(n_rows: int, context: int, limits: RunnerLimits) -> StepSize:
    """Return the size of a step with one sample.

    Raises InvalidRequest if the runner has no such step.
    """
    if not 1 <= n_rows <= limits.max_rows:
        raise InvalidRequest(f"n_rows is {n_rows}, expected 1 to {limits.max_rows}", "n_rows")
    most = limits.context - n_rows
    if not 0 <= context <= most:
        raise InvalidRequest(
            f"context is {context}, expected 0 to {most}: it is what comes before the "
            f"{n_rows} rows, and {limits.context} tokens fit",
            "context",
        )
    return StepSize(n_rows, 1, context)


def cost_of(dispatch: Dispatch, size: StepSize) -> Cost | None:
    """Return the cost of one dispatch in a step of `size`; None for an op without a formula."""
    formula = COSTS.get(dispatch.kernel.name)
    return formula(dispatch, size) if formula else None


def plan_cost(plan: Plan, size: StepSize) -> Cost:
    """Return the cost of all dispatches that have a formula."""
    costs = (cost_of(dispatch, size) for dispatch in plan.dispatches)
    return sum((cost for cost in costs if cost), Cost(0, 0))
