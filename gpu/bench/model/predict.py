"""Predicted time of a dispatch on a GPU: the longest of what limits it.

With g workgroups on the busiest multiprocessor:

    memory        bytes of the op / (0.92 · bandwidth of memory)
    latency       bytes from beyond a multiprocessor / (bytes in flight / latency), where each lane
                  has eight loads in flight (Little's law)
    shared cache  bytes from beyond a multiprocessor / bandwidth of the shared cache
    cache lines   g · lines of a workgroup · clocks per line
    workgroup memory   g · its cycles · clocks per cycle
    arithmetic    g · (multiply-adds + unpacking) / lanes
    issue         g · (instructions for arithmetic and memory) / instructions per clock

With int8 rows four multiply-adds are one instruction, at `GpuSpec.dot4_factor` times the speed of
four, and each sum of 16 products is converted, scaled and added.

If two neighbouring workgroups of a multiprocessor need the same sector, it is loaded once. Every
dispatch also takes the time from the end of the one before to its start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpu.bench.model.specs import GpuSpec
from gpu.bench.model.workgroup_work import DispatchWork
from gpu.tracing.memory_instructions import SECTOR

MEMORY_SHARE = 0.92
"""Share of the published bandwidth of memory that a copy reaches."""
INT8_SCALING = 3.5 / 16
"""Instructions for a product of int8 numbers beside the multiplication: convert, multiply by a
scale and add by another for 16; add the minimum for 32."""
LOADS_IN_FLIGHT = 8
"""Loads that a compiler starts before it needs the first."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted microseconds of one dispatch. `limits`: of each limit alone; `launch`: of its
    start."""

    work: DispatchWork
    limits: dict[str, float]
    launch: float

    @property
    def limit(self) -> str:
        """Name of the limit that takes longest."""
        return max(self.limits, key=lambda name: self.limits[name])

    @property
    def busy(self) -> float:
        """Microseconds after the start."""
        return max(self.limits.values())

    @property
    def us(self) -> float:
        return self.launch + self.busy


def predict(work: DispatchWork, spec: GpuSpec) -> Prediction:
    """Predict one dispatch on a GPU."""
    group = work.workgroup
    n = work.n_workgroups
    busiest = -(-n // spec.multiprocessors)
    us_per_clock = 1e-3 / spec.clock_ghz
    products = work.flops / 2 / n
    beside = group.n_unpacked + (INT8_SCALING * products if work.int8 else 0.0)
    operations = busiest * (beside + products / (spec.dot4_factor if work.int8 else 1.0))
    issued = busiest * (beside + products / (4.0 if work.int8 else 1.0))
    instructions = issued / spec.wave + busiest * group.n_instructions
    own = max(0, n - spec.multiprocessors) * group.n_own_sectors
    n_bytes = SECTOR * (own + min(n, spec.multiprocessors) * group.n_sectors)
    lanes = min(n, spec.multiprocessors * resident(work, spec)) * group.n_lanes
    in_flight = lanes * LOADS_IN_FLIGHT * group.load_bytes
    return Prediction(
        work,
        {
            "memory": work.n_bytes / (MEMORY_SHARE * spec.memory_gb_s) / 1e3,
            "latency": max(1.0, n_bytes / max(1.0, in_flight)) * spec.latency_ns / 1e3,
            "shared cache": n_bytes / spec.l2_gb_s / 1e3,
            "cache lines": busiest * group.n_lines * spec.line_cycles * us_per_clock,
            "workgroup memory": busiest * group.shared_cycles * spec.shared_cycles * us_per_clock,
            "arithmetic": operations / spec.f32_lanes * us_per_clock,
            "issue": instructions / spec.issue * us_per_clock,
        },
        spec.dispatch_us,
    )


def resident(work: DispatchWork, spec: GpuSpec) -> int:
    """Return how many workgroups of a dispatch a multiprocessor holds at a time."""
    group = work.workgroup
    most = min(spec.max_workgroups, spec.max_lanes // group.n_lanes)
    if group.shared_bytes:
        most = min(most, spec.shared_bytes // group.shared_bytes)
    return max(1, most)


@dataclass(frozen=True, slots=True)
class StepPrediction:
    """Predictions of a step's dispatches, each with how often it runs."""

    dispatches: Sequence[tuple[Prediction, int]]

    def by_label(self) -> dict[str, list[tuple[Prediction, int]]]:
        """Return the dispatches of each label: shards of one matrix, which is whole on a device
        with larger bindings."""
        found: dict[str, list[tuple[Prediction, int]]] = {}
        for prediction, times in self.dispatches:
            found.setdefault(prediction.work.label, []).append((prediction, times))
        return found

    @property
    def us(self) -> float:
        """Time of the step. Of several shards only the first is started."""
        return sum(
            times * (prediction.us - (prediction.launch if shard else 0.0))
            for shards in self.by_label().values()
            for shard, (prediction, times) in enumerate(shards)
        )

    @property
    def limit(self) -> str:
        """Name of the limit that takes most of the time; `launch`: the starts of dispatches."""
        by_limit: dict[str, float] = {}
        for prediction, times in self.dispatches:
            for name, us in (("launch", prediction.launch), (prediction.limit, prediction.busy)):
                by_limit[name] = by_limit.get(name, 0.0) + times * us
        return max(by_limit, key=lambda name: by_limit[name])

    @property
    def n_bytes(self) -> int:
        return sum(p.work.n_bytes * times for p, times in self.dispatches)

    @property
    def flops(self) -> int:
        return sum(p.work.flops * times for p, times in self.dispatches)
