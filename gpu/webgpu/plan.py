"""A forward pass as data: recorded once, replayed every step.

WebGPU's command buffers cannot be submitted twice, and each call from Python costs microseconds. So
a model runs once per shape with a `Recorder`, which compiles missing kernels, builds bind groups
and appends `Dispatch`es to a `Plan`. Replaying a plan (`gpu.webgpu.commands`) encodes its prebuilt
handles into one compute pass; per step only the encoder, pass and command buffer are created, as
WebGPU demands.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpu.webgpu.buffers import Tensor
from gpu.webgpu.commands import PassDispatch
from gpu.webgpu.device import Device
from gpu.webgpu.kernels import Kernel, Kernels, Number
from gpu.webgpu.tiling import MAX_WORKGROUPS

Grid = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One run of a kernel: its label (e.g. layer03.attn.qkv), kernel, tensors and grid of
    workgroups."""

    label: str
    kernel: Kernel
    tensors: Mapping[str, Tensor]
    grid: Grid
    bind_group: Any

    @property
    def n_bytes(self) -> int:
        """Bytes of all bound tensors, each counted once: an upper bound of the bytes accessed."""
        return sum({t.name: t.n_bytes for t in self.tensors.values()}.values())

    @property
    def in_pass(self) -> PassDispatch:
        return (self.kernel.pipeline, self.bind_group, *self.grid)


@dataclass(slots=True)
class Plan:
    """Dispatches in order. `marks` are (number of dispatches before, name): points at which a
    captured plan takes a timestamp."""

    dispatches: list[Dispatch] = field(default_factory=list)
    marks: list[tuple[int, str]] = field(default_factory=list)

    def segments(self) -> tuple[tuple[PassDispatch, ...], ...]:
        """Return the dispatches split at the marks: one more segment than marks."""
        cuts = [0, *(at for at, _ in self.marks), len(self.dispatches)]
        return tuple(
            tuple(d.in_pass for d in self.dispatches[a:b]) for a, b in itertools.pairwise(cuts)
        )


class Recorder:
    """Records the dispatches of ops into a plan."""

    def __init__(self, device: Device, kernels: Kernels) -> None:
        self.device = device
        self.kernels = kernels
        self.plan = Plan()

    def dispatch(
        self,
        label: str,
        shader: str,
        tensors: Mapping[str, Tensor | None],
        grid: Grid,
        constants: Mapping[str, Number],
        prelude: Mapping[str, str] | None = None,
        lib: Mapping[str, str] | None = None,
    ) -> None:
        """Append a dispatch of `shader` over `grid` workgroups with `tensors` bound by name; None:
        without this optional binding.

        Raises ValueError if the names do not match the shader's bindings, or if a written tensor's
        buffer is bound again (WebGPU tracks usage per buffer).
        """
        bound = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        unbound = frozenset(tensors.keys() - bound.keys())
        unroll = self.device.tuning.unrolls_loops
        kernel = self.kernels.get(shader, constants, prelude, lib, unbound, unroll=unroll)
        self._check(label, kernel, bound, grid)
        bind_group = self.device.wgpu.create_bind_group(
            label=label,
            layout=kernel.layout,
            entries=[
                {"binding": b.index, "resource": bound[b.name].binding} for b in kernel.bindings
            ],
        )
        self.plan.dispatches.append(Dispatch(label, kernel, bound, grid, bind_group))

    def mark(self, name: str) -> None:
        """Add a named mark at this point of the plan."""
        self.plan.marks.append((len(self.plan.dispatches), name))

    def _check(self, label: str, kernel: Kernel, tensors: Mapping[str, Tensor], grid: Grid) -> None:
        declared = {b.name for b in kernel.bindings}
        if declared != set(tensors):
            raise ValueError(
                f"{label}: {kernel.name}.wgsl binds {sorted(declared)}, but got {sorted(tensors)}"
            )
        written = [tensors[b.name] for b in kernel.bindings if b.kind == "storage"]
        for w in written:
            users = [n for n, t in tensors.items() if t.buffer is w.buffer]
            if len(users) > 1:
                raise ValueError(f"{label}: {w!r} is written and bound again as {sorted(users)}")
        if min(grid) < 1 or max(grid) > MAX_WORKGROUPS:
            raise ValueError(
                f"{label}: a grid of {grid} workgroups is outside 1 to {MAX_WORKGROUPS}"
            )
