"""Runs dispatches with instrumented kernels and returns the memory accesses of a workgroup."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpu.errors import DeviceError
from gpu.tracing.instrument import HEADER_WORDS, PHASE_SHIFT, TRACE, Site, instrumented
from gpu.webgpu.buffers import Memory, Tensor
from gpu.webgpu.calls import open_calls
from gpu.webgpu.commands import StepCommands
from gpu.webgpu.device import Device
from gpu.webgpu.kernel_source import workgroup_size
from gpu.webgpu.kernels import Kernel, Kernels
from gpu.webgpu.plan import Dispatch, Grid

FIRST_BYTES = 4 << 20
"""Size of a trace, at first: 2,047 accesses of each of 256 lanes."""
GROWTH = 4
LIMITS = {"max-storage-buffers-per-shader-stage": 9}
"""What the device of a tracer needs beyond other devices: one more buffer than any kernel has."""

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Trace:
    """Accesses of one workgroup, each with its lane, phase, site and index. Those of a lane are in
    its order.

    n_lanes  lanes of the workgroup
    """

    sites: tuple[Site, ...]
    n_lanes: int
    lane: Ints
    phase: Ints
    site: Ints
    index: Ints


class Tracer:
    """Runs dispatches of a device that was opened with `LIMITS`."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._kernels = _InstrumentedKernels(device)
        self._memory = Memory(device)
        self._calls = open_calls(device)
        self._buffer = self._allocated(FIRST_BYTES)

    def run(
        self,
        dispatch: Dispatch,
        group: Grid = (0, 0, 0),
        restore: Callable[[], None] = lambda: None,
    ) -> Trace:
        """Run a dispatch and return the accesses of the workgroup `group`.

        Runs it again with a larger buffer if they do not fit, after `restore`, which gives back
        what a dispatch that works in place has changed. Raises DeviceError if they do not fit in
        any.
        """
        traced = self._kernels.traced(dispatch.kernel)
        n_lanes = math.prod(workgroup_size(dispatch.kernel))
        while (events := self._events(dispatch, traced.kernel, n_lanes, group)) is None:
            n_bytes, most = self._buffer.n_bytes, self._device.max_binding_bytes
            if n_bytes == most:
                raise DeviceError(
                    f"{dispatch.label}: a workgroup makes more memory accesses than a buffer of "
                    f"{n_bytes:,} bytes holds; trace a smaller problem"
                )
            self._buffer = self._allocated(min(GROWTH * n_bytes, most))
            restore()
        lane, place = np.nonzero(events[..., 0])
        code, index = events[lane, place].astype(np.int64).T
        site = code % (1 << PHASE_SHIFT) - 1
        return Trace(traced.sites, n_lanes, lane, code >> PHASE_SHIFT, site, index)

    def _events(
        self, dispatch: Dispatch, kernel: Kernel, n_lanes: int, group: Grid
    ) -> npt.NDArray[np.uint32] | None:
        """Return the events (n_lanes, events, 2) of a workgroup, or None if they do not fit."""
        n_words = self._buffer.n_bytes // 4
        capacity = (n_words - HEADER_WORDS) // (2 * n_lanes)
        words = np.zeros(n_words, np.uint32)
        words[:HEADER_WORDS] = *group, capacity
        self._memory.write(self._buffer, words)
        in_pass = (kernel.pipeline, self._bound(dispatch, kernel), *dispatch.grid)
        commands = self._calls.prepare(StepCommands(((in_pass,),)))
        self._calls.submit(self._calls.encode(commands))
        words = self._memory.read(self._buffer)[HEADER_WORDS:]
        events = words[: 2 * n_lanes * capacity].reshape(n_lanes, capacity, 2)
        return None if events[:, -1, 0].any() else events

    def _allocated(self, n_bytes: int) -> Tensor:
        return self._memory.zeros(TRACE, (n_bytes // 4,), "u32")

    def close(self) -> None:
        """Cancel what has not begun to compile, and wait for the rest."""
        self._kernels.close()

    def _bound(self, dispatch: Dispatch, kernel: Kernel) -> Any:
        tensors = {**dispatch.tensors, TRACE: self._buffer}
        return self._device.wgpu.create_bind_group(
            label=dispatch.label,
            layout=kernel.layout,
            entries=[
                {"binding": b.index, "resource": tensors[b.name].binding} for b in kernel.bindings
            ],
        )


@dataclass(frozen=True, slots=True)
class _TracedKernel:
    kernel: Kernel
    sites: tuple[Site, ...]


class _InstrumentedKernels(Kernels):
    """Instrumented variants of kernels."""

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self._traced: dict[tuple[Any, ...], _TracedKernel] = {}

    def traced(self, kernel: Kernel) -> _TracedKernel:
        key = (kernel.source, tuple(sorted(kernel.constants.items())))
        if key not in self._traced:
            found = instrumented(kernel.source)
            variant = self._begin(kernel.name, found.source, dict(kernel.constants))
            self._traced[key] = _TracedKernel(variant, found.sites)
        return self._traced[key]
