"""Engines of tests have the device that the tests share, and leave it open."""

from __future__ import annotations

from gpu.load_options import LoadOptions
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.webgpu.device import Device
from tests.gpu.models import random_llama

OPTIONS = LoadOptions(dtype="f32", context=64, slots=1)


def test_a_closed_engine_leaves_the_device_open(device: Device) -> None:
    runner = WgpuRunner.load(random_llama.folder("tiny"), OPTIONS)
    assert runner.gpu.wgpu is device.wgpu
    runner.close()
    again = WgpuRunner.load(random_llama.folder("tiny"), OPTIONS)
    assert again.plan_for(1, 1, capture=False).plan.dispatches[0].kernel.pipeline
    again.close()


def test_an_engine_with_checks_has_a_device_of_its_own(device: Device) -> None:
    runner = WgpuRunner.load(random_llama.folder("tiny"), OPTIONS, checked=not device.checked)
    assert runner.gpu.wgpu is not device.wgpu
    runner.close()
