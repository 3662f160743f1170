"""Builds the report of a recorded plan: every dispatch in order with its bindings and cost
(`gpu.ops.cost`), and the source of every kernel as it runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

import msgspec

from gpu.info import RunnerLimits
from gpu.ops.cost import StepSize
from gpu.plans.cost import cost_of, plan_cost, step_size
from gpu.plans.plan_cache import RecordedPlan
from gpu.plans.plan_report import Access, PlanBinding, PlanDispatch, PlanKernel, PlanReport
from gpu.webgpu.buffers import Tensor
from gpu.webgpu.kernel_source import filled_source, workgroup_size
from gpu.webgpu.kernels import Binding, Kernel
from gpu.webgpu.plan import Dispatch, Plan

_LAYER = re.compile(r"layer(\d+)\.")


def plan_report(recorded: RecordedPlan, size: StepSize) -> PlanReport:
    """Return the report of `recorded` as replayed for a step of `size`."""
    plan = recorded.plan
    kernels = _kernels(plan)
    numbers = {id(kernel): number for number, kernel in enumerate(kernels)}
    total = plan_cost(plan, size)
    return PlanReport(
        n_rows=size.n_rows,
        n_samples=size.n_samples,
        context=size.context,
        recorded_rows=recorded.key.rows,
        dispatches=tuple(_dispatch(d, numbers[id(d.kernel)], size) for d in plan.dispatches),
        kernels=tuple(_kernel(kernel) for kernel in kernels),
        n_bytes=total.n_bytes,
        flops=total.flops,
    )


def join_reports(reports: Sequence[PlanReport]) -> PlanReport:
    """Return the report of a model in stages of those of its stages, in order."""
    dispatches: list[PlanDispatch] = []
    kernels: list[PlanKernel] = []
    for report in reports:
        first = len(kernels)
        kernels += report.kernels
        dispatches += (
            msgspec.structs.replace(d, kernel=first + d.kernel) for d in report.dispatches
        )
    return msgspec.structs.replace(
        reports[-1],
        dispatches=tuple(dispatches),
        kernels=tuple(kernels),
        n_bytes=sum(report.n_bytes for report in reports),
        flops=sum(report.flops for report in reports),
    )


class CanPlan(Protocol):
    """The part of a runner that `step_cost` uses."""

    @property
    def limits(self) -> RunnerLimits: ...

    def plan_for(
        self, n_rows: int, n_samples: int, capture: bool, context: int = 1
    ) -> RecordedPlan: ...


def step_cost(runner: CanPlan, n_rows: int, context: int) -> tuple[int, int]:
    """Return (flops, bytes) of a step of `n_rows` rows of one sequence after `context` tokens, the
    last of them sampled: decode is one row, prefill many. Raises InvalidRequest for a size that no
    step can have."""
    size = step_size(n_rows, context, runner.limits)
    recorded = runner.plan_for(size.n_rows, size.n_samples, False, size.n_keys)
    cost = plan_cost(recorded.plan, size)
    return cost.flops, cost.n_bytes


def _kernels(plan: Plan) -> list[Kernel]:
    """Return each kernel once, in the order of their first dispatches."""
    return list({id(dispatch.kernel): dispatch.kernel for dispatch in plan.dispatches}.values())


def _kernel(kernel: Kernel) -> PlanKernel:
    return PlanKernel(
        kernel.name, workgroup_size(kernel), dict(kernel.constants), filled_source(kernel)
    )


def _dispatch(dispatch: Dispatch, kernel: int, size: StepSize) -> PlanDispatch:
    layer = _LAYER.match(dispatch.label)
    cost = cost_of(dispatch, size)
    return PlanDispatch(
        label=dispatch.label,
        layer=int(layer[1]) if layer else None,
        op=dispatch.kernel.name,
        kernel=kernel,
        grid=dispatch.grid,
        bindings=tuple(_binding(b, dispatch.tensors[b.name]) for b in dispatch.kernel.bindings),
        bound_bytes=dispatch.n_bytes,
        n_bytes=cost.n_bytes if cost else None,
        flops=cost.flops if cost else None,
    )


def _binding(binding: Binding, tensor: Tensor) -> PlanBinding:
    kinds: dict[str, Access] = {
        "uniform": "uniform",
        "read-only-storage": "read",
        "texture": "read",
        "storage": "read_write",
    }
    access = kinds[binding.kind]
    return PlanBinding(
        binding.name, tensor.name, tensor.dtype, tensor.shape, tensor.n_bytes, access
    )
