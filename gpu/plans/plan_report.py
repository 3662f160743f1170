"""Messages that describe a recorded plan: made by `gpu.plans.report_builder`, sent to the page."""

from __future__ import annotations

from typing import Literal

import msgspec

Access = Literal["uniform", "read", "read_write"]


class PlanBinding(msgspec.Struct, frozen=True):
    """Binding `name` of a shader and the tensor bound to it, as stored: packed weights are u32
    words. "read_write" is how a shader must declare what it writes."""

    name: str
    tensor: str
    dtype: str
    shape: tuple[int, ...]
    n_bytes: int
    access: Access


class PlanDispatch(msgspec.Struct, frozen=True):
    """One dispatch. `layer`: None before and after the layers. `kernel`: index in
    `PlanReport.kernels`. `bound_bytes`: those of all tensors bound; `n_bytes`, `flops`: what this
    step needs of them, None for an op without a cost formula."""

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
    """One kernel. `constants`: values of the shader's overrides; `source` contains them."""

    op: str
    workgroup_size: tuple[int, int, int]
    constants: dict[str, bool | int | float]
    source: str


class PlanReport(msgspec.Struct, frozen=True):
    """Plan for `n_rows` rows after `context` tokens, recorded for `recorded_rows` rows; `n_bytes`
    and `flops` are the sums over its dispatches."""

    n_rows: int
    n_samples: int
    context: int
    recorded_rows: int
    dispatches: tuple[PlanDispatch, ...]
    kernels: tuple[PlanKernel, ...]
    n_bytes: int
    flops: int
