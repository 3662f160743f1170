"""The device that tests share: opened once, also for engines, which would open one each. Its
pipelines are compiled once, whichever test asks for them: half of the work of a test with a small
model is compiling."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import pytest

from gpu.checkpoint.reader import Progress
from gpu.load_options import LoadOptions
from gpu.runners import wgpu_runner
from gpu.tracing.tracer import LIMITS
from gpu.webgpu.compiler import Compiler
from gpu.webgpu.device import Device
from tests.gpu.ops.rig import Rig

MAX_PIPELINES = 600
"""A software driver takes 3.5 MB for each; all that a run of the tests compiles would be 5 GB."""


@cache
def shared_device() -> Device:
    return Device.open(more_limits=LIMITS if Rig.races else {})


class LentDevice(Device):
    """The shared device, as an engine has it: closing leaves it open."""

    __slots__ = ()

    def close(self) -> None:
        self.submissions.close()


def share(patch: pytest.MonkeyPatch) -> None:
    """Lend the device to engines that ask for no other, and keep its pipelines."""
    open_device = wgpu_runner.open_device

    def lend(options: LoadOptions, checked: bool | None, progress: Progress) -> Device:
        device = shared_device()
        is_other = options.adapter or options.autotune or options.activations != "auto"
        if is_other or checked not in (None, device.checked):
            return open_device(options, checked, progress)
        return LentDevice(device.wgpu, device.info, device.checked, device.tuning, device.policy)

    patch.setattr(wgpu_runner, "open_device", lend)
    patch.setattr(Compiler, "_compile", compiles_once())


def compiles_once() -> Callable[..., Any]:
    """Return what stands in for `Compiler._compile`: it keeps the pipelines of the shared device
    that were used last."""
    compile, pipelines, lock = Compiler._compile, dict[tuple[Any, ...], Any](), threading.Lock()

    def compile_once(
        self: Compiler, name: str, source: str, constants: Mapping[str, float], layout: Any
    ) -> Any:
        is_open = shared_device.cache_info().currsize
        if not is_open or self._device.wgpu is not shared_device().wgpu:
            return compile(self, name, source, constants, layout)
        key = (self._device.checked, source, *sorted(constants.items()))
        with lock:
            pipeline = pipelines.pop(key, None)
        if pipeline is None:
            pipeline = compile(self, name, source, constants, layout)
        with lock:
            pipelines[key] = pipeline
            if len(pipelines) > MAX_PIPELINES:
                del pipelines[next(iter(pipelines))]
        return pipeline

    return compile_once
