"""Sources of a plan declare the length of each array whose buffers all have one size."""

from __future__ import annotations

import pytest

from gpu.export.array_lengths import declare_lengths
from gpu.export.plan_format import PlanDispatch, PlanKernel, PlanView
from gpu.webgpu.wgsl_types import with_lengths

SOURCE = """alias Load16 = vec4u;
@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> x: array<Load16>; // the rest
@group(0) @binding(3) var<storage, read_write> y: array<f32>;
var<workgroup> z: array<f32, 4>;
fn first() -> f32 { return y[0]; }
"""
X, Y = "x: array<Load16>;", "y: array<f32>;"
BINDINGS = ((0, "uniform"), (1, "read-only-storage"), (3, "storage"))


@pytest.mark.parametrize(
    ("n_bytes", "x", "y"),
    [
        pytest.param({"x": 96, "y": 96}, "x: array<Load16, 6>;", "y: array<f32, 24>;", id="all"),
        pytest.param({"x": 95}, "x: array<Load16, 5>;", Y, id="no whole number of elements"),
        pytest.param({"x": 15, "z": 64}, X, Y, id="none fits, and not one of a buffer"),
    ],
)
def test_arrays_of_buffers_get_their_lengths(n_bytes: dict[str, int], x: str, y: str) -> None:
    assert with_lengths(SOURCE, n_bytes) == SOURCE.replace(X, x).replace(Y, y)


def test_only_arrays_that_are_bound_with_one_size() -> None:
    """Kernel 0 writes buffers of two sizes and kernel 1 of one; kernel 2 does as kernel 1."""
    kernels = [PlanKernel(name, 0, {}, BINDINGS, (1, 1, 1)) for name in ("a", "b", "c")]
    views = [PlanView(0, 0, n, "", "u32", (n,)) for n in (64, 128, 256)]
    dispatches = [
        PlanDispatch("", kernel, (1, 1, 1), (0, 1, y), None)
        for kernel, y in ((0, 1), (0, 2), (1, 2), (2, 2))
    ]
    declared, sources = declare_lengths(kernels, [SOURCE], dispatches, views)
    found = [sources[kernel.source] for kernel in declared]
    of_x = SOURCE.replace(X, "x: array<Load16, 8>;")
    of_both = of_x.replace(Y, "y: array<f32, 64>;")
    assert found == [of_x, of_both, of_both]
    assert sorted(sources) == sorted({of_x, of_both})
    assert [kernel.name for kernel in declared] == ["a", "b", "c"]
