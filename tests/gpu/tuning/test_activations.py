"""Activations of q8 and q4 weights: as measured, or as configured. How they are measured is tested
in test_compare.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpu.engine.engine import Engine
from gpu.errors import ModelError
from gpu.load_options import LoadOptions
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.webgpu.device import Device
from tests.gpu.models import random_llama


def test_activations_are_those_requested_or_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(device: Device, progress: Any) -> Device:
        return replace(device, tuning=replace(device.tuning, q8_activations=True))

    monkeypatch.setattr("gpu.runners.wgpu_runner.load_tuning", measured)
    for dtype, probe, activations, expected in (
        ("q8", False, "auto", "f32"),
        ("q8", True, "auto", "q8"),
        ("q8", True, "f32", "f32"),
        ("f16", True, "q8", "f32"),
    ):
        folder = random_llama.folder("odd172_bias")
        runner = WgpuRunner.load(
            folder, LoadOptions(dtype=dtype, autotune=probe, activations=activations)
        )
        assert runner.activations == expected
        runner.close()


def test_an_engine_reports_its_activations() -> None:
    engine = Engine.load(
        random_llama.folder("odd172_bias"), LoadOptions(dtype="q4", activations="q8")
    )
    assert engine.info.activations == "q8"
    runner = engine._thread.runner
    assert isinstance(runner, WgpuRunner)
    plan = runner.plan_for(1, 1, capture=False).plan
    rounded = [
        dispatch for dispatch in plan.dispatches if dispatch.kernel.name == "quantize_activations"
    ]
    assert len(rounded) == 4 * engine.config.n_layers, "not the output head's"
    engine.close()


def test_unsupported_activations_are_refused() -> None:
    folder = random_llama.folder("odd172_bias")
    with pytest.raises(ModelError, match="activations q8 is for --backend wgpu"):
        Engine.load(folder, LoadOptions(dtype="q8", activations="q8", backend="torch"))
    with pytest.raises(ModelError, match="supported: auto, f32, q8"):
        Engine.load(folder, LoadOptions(dtype="q8", activations="nibbles"))
