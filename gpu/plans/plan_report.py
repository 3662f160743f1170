"""A recorded plan as messages: what `gpu.plans.report_builder` makes of one, and what the page is
sent."""

from __future__ import annotations

from typing import Literal

import msgspec

Access = Literal["uniform", "read", "read_write", "unused"]


class PlanBinding(msgspec.Struct, frozen=True):
    """A binding `name` of the shader and the tensor behind it, as it lies in memory: packed weights
    are u32 words. "read_write" is how a shader must declare what it writes; "unused": a stand-in
    for what this op can do without."""

    name: str
    tensor: str
    dtype: str
    shape: tuple[int, ...]
    n_bytes: int
    access: Access


class PlanDispatch(msgspec.Struct, frozen=True):
    """`layer`: None before and after the layers. `kernel`: its place in `PlanReport.kernels`.
    `bound_bytes`: of all tensors bound; `n_bytes`, `flops`: what this step needs of them, None
    where no formula says."""

    label: str
    layer: int | None
    op: str
    kernel: int
    grid: tuple[int, int, int]
    bindings: tuple[PlanBinding, ...]
    bound_bytes: int
    n_bytes: int | None
    flops: int | None


class PlanKernel(msgspec.Struct, frozen=True):
    """`constants`: the values of the shader's overrides, which `source` has put in."""

    op: str
    workgroup_size: tuple[int, int, int]
    constants: dict[str, bool | int | float]
    source: str


class PlanReport(msgspec.Struct, frozen=True):
    """The plan for `n_rows` rows after `context` tokens, recorded for `recorded_rows` rows;
    `n_bytes` and `flops` are the sums of its dispatches'."""

    n_rows: int
    n_samples: int
    context: int
    recorded_rows: int
    dispatches: tuple[PlanDispatch, ...]
    kernels: tuple[PlanKernel, ...]
    n_bytes: int
    flops: int
