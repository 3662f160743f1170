"""The rig of the checks as tests use it: with the lanes of workgroups in other orders, with memory
accesses traced, with other leftovers in memory. The largest error of each result is remembered for
the report at the end of the run."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle
from typing import Any

import numpy as np

from gpu.checks import rig
from gpu.checks.difference import Difference, difference
from gpu.checks.rig import POISON, Array, with_info
from gpu.tracing.races import races
from gpu.tracing.tracer import Tracer
from gpu.webgpu.buffers import Tensor
from gpu.webgpu.commands import StepCommands
from gpu.webgpu.device import Device
from gpu.webgpu.kernels import Kernels
from gpu.webgpu.plan import Plan, Recorder
from gpu.webgpu.tiling import GPU, SOFTWARE_LOADS, Tuning
from tests import figures
from tests.figures import Worst
from tests.gpu.ops.lane_orders import ORDERS, RenumberedKernels

IN_ANY_ORDER = ("bins",)
"""Tensors whose words may lie in any order; what is made of them has one result."""
TUNINGS: dict[str, Tuning | None] = {"own": None, "loads": SOFTWARE_LOADS, "gpu": GPU}
"""Tunings: the device's own, and those of other kinds of device."""


class Rig(rig.Rig):
    """Runs ops on one device in the ways that the options of the tests ask for."""

    lane_orders = False
    """Set by `--lane-orders`."""
    races = False
    """Set by `--races`."""
    leftover = float("nan")
    """What buffers hold before a test writes to them. Set by `--leftovers`."""

    def __init__(self, device: Device, kernels: Kernels | None = None, *args: Any) -> None:
        super().__init__(device, kernels, *args)
        self._renumbered: dict[str, Kernels] = {}
        self._tracer: Tracer | None = None
        self._parts = cycle(range(3))

    def note(self, result: str, found: Difference) -> None:
        figures.add(result, Worst(found.error, found.of_bound, found.numbers))

    def expect(self, what: str, is_right: bool | np.bool_) -> None:
        assert is_right, what

    def poison(self, tensor: Tensor) -> Tensor:
        word = POISON if np.isnan(self.leftover) else np.float32(self.leftover).view(np.uint32)
        self.memory.write(tensor, np.full(tensor.n_bytes // 4, word, np.uint32))
        return tensor

    def unwritten(self, array: Array) -> Array:
        if np.isnan(self.leftover):
            return array
        return np.where(np.isnan(array), np.array(self.leftover, array.dtype), array)

    def run(self, record: Callable[[Recorder], None]) -> None:
        """Record and run. With `--lane-orders`, do so again in each of `ORDERS`, and fail unless
        all results but `IN_ANY_ORDER` have the same bits. With `--races`, trace a workgroup of
        every dispatch, and fail if its lanes race."""
        plan = self._recorded(record, self.kernels)
        if self.races:
            self._run_traced(plan)
            return
        if not self.lane_orders:
            self._submit(plan)
            return
        before = {id(t): (t, self._words(t)) for t in written_by(plan)}
        self._submit(plan)
        want = {key: self._words(tensor) for key, (tensor, _) in before.items()}
        for order in ORDERS:
            kernels = self._renumbered.setdefault(order, RenumberedKernels(self.device, order))
            again = self._recorded(record, kernels)
            self._restore(list(before.values()))
            self._submit(again)
            for tensor in written_by(again):
                if id(tensor) not in want:
                    continue
                found, wanted = self._words(tensor), want[id(tensor)]
                if tensor.name in IN_ANY_ORDER:
                    found, wanted = np.sort(found, axis=None), np.sort(wanted, axis=None)
                same = np.array_equal(found, wanted)
                assert same, f"{tensor!r} depends on the order of the lanes ({order})"

    def _run_traced(self, plan: Plan) -> None:
        self._tracer = self._tracer or Tracer(self.device)
        for dispatch in plan.dispatches:
            part = next(self._parts)  # the first, a middle or the last workgroup
            x, y, z = (part * (n - 1) // 2 for n in dispatch.grid)
            before = [(tensor, self._words(tensor)) for tensor in written_by(plan)]
            restore = functools.partial(self._restore, before)
            found = races(self._tracer.run(dispatch, (x, y, z), restore))
            assert not found, f"{dispatch.label}, workgroup {x, y, z}: {found[0]}"

    def _restore(self, before: list[tuple[Tensor, Array]]) -> None:
        for tensor, contents in before:
            self.memory.write(tensor, contents)

    def _words(self, tensor: Tensor) -> Array:
        """Return the contents of a tensor of any type as u32."""
        return self.memory.read(replace(tensor, shape=(tensor.n_bytes // 4,), dtype="u32"))

    def _recorded(self, record: Callable[[Recorder], None], kernels: Kernels) -> Plan:
        rec = Recorder(self.device, kernels)
        record(rec)
        return rec.plan

    def _submit(self, plan: Plan) -> None:
        """Run a plan; reading a result waits for it."""
        commands = self.calls.prepare(StepCommands(plan.segments()))
        self.calls.submit(self.calls.encode(commands))


def written_by(plan: Plan) -> list[Tensor]:
    """Return the tensors that a plan's dispatches may write, each once."""
    found = {
        id(tensor): tensor
        for dispatch in plan.dispatches
        for binding in dispatch.kernel.bindings
        if binding.kind == "storage"
        for tensor in (dispatch.tensors[binding.name],)
    }
    return list(found.values())


def as_kind(device: Device, software: bool) -> Device:
    """Return the same device posing as a software device or a GPU: ops choose other tiles."""
    tuning = device.tuning if software else GPU
    return with_info(replace(device, tuning=tuning), software=software)


def without_int64(device: Device) -> Device:
    """Return the same device without 64-bit integers: shaders load words."""
    features = tuple(name for name in device.info.features if name != "shader-int64")
    return with_info(device, features=features)


def tuned(rig: Rig, name: str) -> Rig:
    """Return a rig with one of `TUNINGS`."""
    tuning = TUNINGS[name]
    return rig.on(replace(rig.device, tuning=tuning)) if tuning else rig


def compare(
    result: str, case: object, got: Array, want: Array, bound: Array | float, seed: int
) -> None:
    """Fail unless |got − want| ≤ bound everywhere. `result` names what is compared."""
    found = difference(got, want, bound)
    assert not found.wrong, f"{result} {case}, seed {seed}: {found.wrong}"
    figures.add(result, Worst(found.error, found.of_bound, found.numbers))
