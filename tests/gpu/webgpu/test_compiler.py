"""Pipelines are compiled in the background, and only while something references them."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from gpu.errors import DeviceError
from gpu.webgpu.compiler import Compiler
from gpu.webgpu.device import Device
from gpu.webgpu.kernels import Kernel, Kernels

PATIENCE_S = 20


class SlowCompiler:
    """Fake compilation, one at a time: none ends before `go_on` is set."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.begun = threading.Event()
        self.compiled: list[float] = []

    def compile(self, name: str, source: str, constants: dict[str, float], layout: Any) -> str:
        self.begun.set()
        assert self.go_on.wait(PATIENCE_S)
        self.compiled.append(constants["COUNT"])
        return f"{name} {constants['COUNT']}"


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowCompiler]:
    slow = SlowCompiler()
    monkeypatch.setattr(Compiler, "_compile", lambda _, *given: slow.compile(*given))
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    yield slow
    slow.go_on.set()


def embed(kernels: Kernels, count: int) -> Kernel:
    return kernels.get("embed", {"BLOCKS": 1, "COUNT": count}, lib={"weight": "weight_f32"})


def test_a_caller_waits_only_for_the_pipelines_it_uses(device: Device, slow: SlowCompiler) -> None:
    kernels = Kernels(device)
    found = [embed(kernels, count) for count in (1, 2, 3)]
    assert slow.begun.wait(PATIENCE_S)
    assert not slow.compiled
    slow.go_on.set()
    assert [kernel.pipeline for kernel in reversed(found)] == ["embed 3", "embed 2", "embed 1"]
    assert slow.compiled == [1, 2, 3], "in the order in which they were asked for"


def test_unreferenced_kernels_are_not_compiled(device: Device, slow: SlowCompiler) -> None:
    kernels, dropped = Kernels(device), Kernels(device)
    first = embed(dropped, 1)
    assert slow.begun.wait(PATIENCE_S)
    second = embed(dropped, 2)
    embed(dropped, 3)
    del dropped
    gc.collect()
    slow.go_on.set()
    assert (first.pipeline, second.pipeline) == ("embed 1", "embed 2")
    assert embed(kernels, 4).pipeline == "embed 4"
    assert slow.compiled == [1, 2, 4]


def test_a_dropped_kernel_frees_its_pipeline(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Pipeline:
        """Part of a reference cycle, as wgpu's objects are with their device."""

        def __init__(self) -> None:
            self.device = [self]

    monkeypatch.setattr(Compiler, "_compile", lambda *_: Pipeline())
    circle: list[Any] = [embed(Kernels(device), 1)]
    circle.append(circle)
    pipeline = weakref.ref(circle[0].pipeline)
    assert pipeline()
    del circle
    gc.collect()
    assert pipeline() is None


def test_closing_waits_for_what_has_begun_and_begins_nothing(
    device: Device, slow: SlowCompiler
) -> None:
    kernels = Kernels(device)
    found = [embed(kernels, count) for count in (1, 2)]
    assert slow.begun.wait(PATIENCE_S)
    threading.Timer(0.1, slow.go_on.set).start()
    kernels.close()
    assert slow.compiled == [1]
    assert found[0].pipeline == "embed 1"


def test_a_fault_is_raised_whenever_the_pipeline_is_wanted(device: Device) -> None:
    kernel = Kernels(device).get("embed", {"BLOCKS": 3}, lib={"weight": "weight_f32"})
    for _ in range(2):
        with pytest.raises(DeviceError, match=r"embed\.wgsl with {'BLOCKS': 3} failed"):
            _ = kernel.pipeline
