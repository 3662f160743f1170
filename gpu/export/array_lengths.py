"""Lengths for the arrays of a plan's sources.

Browsers keep each access to a buffer within its bounds. For an array that takes the rest of its
buffer they compute its length from the size of the buffer, at every access; a length that the
source declares is a constant.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from gpu.export.plan_format import PlanDispatch, PlanKernel, PlanView
from gpu.webgpu.kernels import bindings_of
from gpu.webgpu.wgsl_types import with_lengths


def declare_lengths(
    kernels: Sequence[PlanKernel],
    sources: Sequence[str],
    dispatches: Iterable[PlanDispatch],
    views: Sequence[PlanView],
) -> tuple[tuple[PlanKernel, ...], tuple[str, ...]]:
    """Return kernels and sources that declare the length of an array wherever all dispatches of
    the kernel bind as many bytes. Sources that differ in lengths alone are neighbours, so that they
    compress well."""
    bound = _bound_bytes(kernels, dispatches, views)
    declared = []
    for kernel, sizes in zip(kernels, bound, strict=True):
        source = sources[kernel.source]
        names = {binding.index: binding.name for binding in bindings_of(source)}
        n_bytes = {names[at]: next(iter(found)) for at, found in sizes.items() if len(found) == 1}
        declared.append((kernel.source, with_lengths(source, n_bytes)))
    places = {key: i for i, key in enumerate(sorted(set(declared)))}
    placed = (
        msgspec.structs.replace(kernel, source=places[key])
        for kernel, key in zip(kernels, declared, strict=True)
    )
    return tuple(placed), tuple(source for _, source in places)


def _bound_bytes(
    kernels: Sequence[PlanKernel], dispatches: Iterable[PlanDispatch], views: Sequence[PlanView]
) -> list[dict[int, set[int]]]:
    """Return the bytes that are bound at each binding of each kernel."""
    found: list[dict[int, set[int]]] = [defaultdict(set) for _ in kernels]
    for dispatch in dispatches:
        for (at, _), view in zip(kernels[dispatch.kernel].bindings, dispatch.views, strict=True):
            found[dispatch.kernel][at].add(views[view].bytes)
    return found
