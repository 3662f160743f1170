"""A device that can be traced, and small kernels written for the tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gpu.tracing.tracer import LIMITS, Trace, Tracer
from gpu.webgpu.buffers import Memory, Tensor
from gpu.webgpu.device import Device
from gpu.webgpu.kernels import Kernel, Kernels
from gpu.webgpu.plan import Dispatch, Grid

Run = Callable[..., Trace]


class SourceKernels(Kernels):
    """Kernels from a source instead of a file."""

    def compile(self, source: str) -> Kernel:
        return self._begin("test", source, {})


@pytest.fixture(scope="session")
def traceable() -> Device:
    return Device.open(more_limits=LIMITS)


@pytest.fixture(scope="session")
def tracer(traceable: Device) -> Tracer:
    return Tracer(traceable)


@pytest.fixture
def run(traceable: Device, tracer: Tracer) -> Run:
    """Trace a workgroup of a kernel with one buffer `data` of words, whose contents afterwards are
    `run.data`."""
    memory, kernels = Memory(traceable), SourceKernels(traceable)

    def traced(
        source: str, data: npt.NDArray[Any], grid: Grid = (1, 1, 1), group: Grid = (0, 0, 0)
    ) -> Trace:
        words = data.astype(np.uint32)
        tensor = memory.upload("data", words)
        kernel = kernels.compile(source)
        dispatch = Dispatch("test", kernel, named(kernel, tensor), grid, None)
        trace = tracer.run(dispatch, group, lambda: memory.write(tensor, words))
        traced.data = memory.read(tensor)  # type: ignore[attr-defined]
        return trace

    return traced


def named(kernel: Kernel, tensor: Tensor) -> Mapping[str, Tensor]:
    return {binding.name: tensor for binding in kernel.bindings}
