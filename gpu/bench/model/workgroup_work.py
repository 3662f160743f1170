"""Work of a dispatch, counted in one of its workgroups."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gpu.ops.cost import StepSize
from gpu.plans.cost import cost_of
from gpu.tracing.memory_instructions import SECTOR, first_lanes, instructions
from gpu.tracing.tracer import Trace, Tracer
from gpu.webgpu.kernel_source import workgroup_memory
from gpu.webgpu.plan import Dispatch, Grid

UNPACK_OPERATIONS = {"f32": 0.0, "f16": 0.5, "q8": 2.0, "q4": 4.0}
"""Instructions for one weight: a conversion of two halves; extract and scale; shift, mask, convert,
scale."""
UNPACK_INT8_OPERATIONS = {"q8": 0.0, "q4": 0.25}
"""The same for a weight that becomes int8: shift and mask eight, of which a lane keeps four."""
SAMPLE_WAVES = 2
"""Waves of a workgroup whose instructions are counted; the others do the same."""
WEIGHT_BITS = {"f32": 32, "f16": 16, "q8": 8, "q4": 4}


@dataclass(frozen=True, slots=True)
class WorkgroupWork:
    """Work of a workgroup in the middle of a dispatch.

    n_lanes        lanes
    shared_bytes   workgroup memory
    n_loads        loads of a lane from storage, on average
    load_bytes     bytes of such a load
    n_lines        lines that wave instructions touch in storage
    n_sectors      sectors of storage, each counted once
    n_own_sectors  those that the neighbouring workgroup does not touch
    shared_cycles  cycles of workgroup memory
    n_instructions wave instructions for memory
    n_unpacked     instructions that unpack weights, of single lanes
    """

    n_lanes: int
    shared_bytes: int
    n_loads: float
    load_bytes: float
    n_lines: int
    n_sectors: int
    n_own_sectors: int
    shared_cycles: int
    n_instructions: int
    n_unpacked: float


@dataclass(frozen=True, slots=True)
class DispatchWork:
    """Work of a whole dispatch: `flops` and `n_bytes` by the formula of its op (0 without one).
    `int8`: the kernel multiplies by dot4I8Packed."""

    label: str
    kernel: str
    grid: Grid
    flops: int
    n_bytes: int
    workgroup: WorkgroupWork
    int8: bool = False

    @property
    def n_workgroups(self) -> int:
        return math.prod(self.grid)


def work_of(
    tracer: Tracer,
    dispatch: Dispatch,
    size: StepSize,
    dtype: str,
    wave: int,
    *,
    busy_y: tuple[int, int] | None = None,
) -> DispatchWork:
    """Trace two neighbouring workgroups in the middle of a dispatch in a step of `size`, whose
    weights are stored as `dtype`. `busy_y`: the one to trace in y, and how many there have work."""
    n_x, n_y, n_z = dispatch.grid
    x, y, z = n_x // 2, n_y // 2, n_z // 2
    if busy_y:
        y, n_y = busy_y
    trace = tracer.run(dispatch, (x, y, z))
    beside = tracer.run(dispatch, (x - 1, y, z)) if x else None
    cost = cost_of(dispatch, size)
    return DispatchWork(
        dispatch.label,
        dispatch.kernel.name,
        (n_x, n_y, n_z),
        cost.flops if cost else 0,
        cost.n_bytes if cost else 0,
        _of_workgroup(dispatch, trace, beside, dtype, wave),
        _is_int8(dispatch),
    )


def _is_int8(dispatch: Dispatch) -> bool:
    """Return whether a dispatch is a matmul of int8 rows."""
    return "weight" in dispatch.tensors and "dot4I8Packed" in dispatch.kernel.source


def _of_workgroup(
    dispatch: Dispatch, trace: Trace, beside: Trace | None, dtype: str, wave: int
) -> WorkgroupWork:
    sample = first_lanes(trace, SAMPLE_WAVES * wave)
    scale = trace.n_lanes // sample.n_lanes
    found = instructions(sample, wave)
    loads = [i for i in found if i.site.space == "storage" and i.site.kind == "read"]
    storage = [i for i in found if i.site.space == "storage"]
    n_loads = sum(i.n_accesses for i in loads)
    load_bytes = sum(i.n_accesses * i.site.n_bytes for i in loads)
    weights = sum(i.n_accesses * i.site.n_bytes for i in loads if i.site.variable == "weight")
    unpack = UNPACK_INT8_OPERATIONS if _is_int8(dispatch) else UNPACK_OPERATIONS
    sectors = _sectors(trace)
    own = sectors - _sectors(beside) if beside else sectors
    return WorkgroupWork(
        n_lanes=trace.n_lanes,
        shared_bytes=workgroup_memory(dispatch.kernel),
        n_loads=n_loads / sample.n_lanes,
        load_bytes=load_bytes / max(1, n_loads),
        n_lines=scale * sum(i.n_lines for i in storage),
        n_sectors=len(sectors),
        n_own_sectors=len(own),
        shared_cycles=scale * sum(i.n_cycles for i in found),
        n_instructions=scale * sum(i.n_instructions for i in found),
        n_unpacked=scale * unpack[dtype] * 8 * weights / WEIGHT_BITS[dtype],
    )


def _sectors(trace: Trace) -> set[int]:
    """Return the sectors of storage that a workgroup touches, numbered by variable and place."""
    names = sorted({site.variable for site in trace.sites})
    found: set[int] = set()
    for number, site in enumerate(trace.sites):
        if site.space == "storage":
            index = np.unique(trace.index[trace.site == number])
            first, last = index * site.n_bytes, (index + 1) * site.n_bytes - 1
            touched = np.unique(np.concatenate([first // SECTOR, last // SECTOR]))
            found.update((touched * len(names) + names.index(site.variable)).tolist())
    return found
