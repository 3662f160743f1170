"""Choice of int8 activations for q8 and q4 weights: by measured speed, or as configured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from gpu.engine.engine import Engine
from gpu.errors import ModelError
from gpu.load_options import LoadOptions
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.tuning.activations import measure_activations
from gpu.tuning.matmul_timer import MatmulTrial
from gpu.webgpu.device import Device
from gpu.webgpu.tiling import GPU
from tests.gpu.models import random_llama

Part = tuple[str, bool]


@dataclass
class FakeTimer:
    """A device on which matmuls take 1 s, unless `seconds_of` (shape, q8) has another time.
    `wrong`: fault of the results."""

    seconds_of: Mapping[Part, float] = field(default_factory=dict)
    wrong: Mapping[Part, str] = field(default_factory=dict)
    begun: list[Part] = field(default_factory=list)

    def begin(self, trial: MatmulTrial) -> str:
        self.begun.append((trial.shape, trial.q8))
        return self.wrong.get((trial.shape, trial.q8), "")

    def seconds(self, trial: MatmulTrial) -> float:
        return self.seconds_of.get((trial.shape, trial.q8), 1.0)


def test_q8_is_chosen_where_it_is_faster() -> None:
    timer = FakeTimer({("decode", True): 0.5, ("prefill", True): 0.8})
    found = measure_activations(timer, replace(GPU, q8_activations=True))
    assert found.q8_pays
    rows = found.rows({"decode": 10**9, "prefill": 4 * 10**9})
    assert [(r.decode_gweights, r.prefill_gflops, r.chosen) for r in rows] == [
        (1.0, 8.0, False), (2.0, 10.0, True),
    ]  # fmt: skip
    assert timer.begun == [
        ("decode", False), ("decode", True), ("prefill", False), ("prefill", True),
    ]  # fmt: skip


def test_q8_that_hardly_gains_in_decode_is_not_tried_in_prefill() -> None:
    timer = FakeTimer({("decode", True): 0.95, ("prefill", True): 0.1})
    found = measure_activations(timer, GPU)
    assert not found.q8_pays
    assert {shape for shape, _ in timer.begun} == {"decode"}
    rows = found.rows({"decode": 10**9, "prefill": 10**9})
    assert [(row.prefill_gflops, row.chosen) for row in rows] == [(None, True), (None, False)]


def test_q8_that_loses_in_prefill_is_not_chosen() -> None:
    lost = {("decode", True): 0.5, ("prefill", True): 1.1}
    assert not measure_activations(FakeTimer(lost), GPU).q8_pays
    equal = lost | {("prefill", True): 1.01}
    assert measure_activations(FakeTimer(equal), GPU).q8_pays


def test_a_device_that_is_slow_is_timed_once() -> None:
    """Each matmul is timed, also after the deadline: the choice needs prefill."""
    times = {("decode", False): 4.0, ("decode", True): 1.0, ("prefill", True): 0.5}
    timer = FakeTimer(times)
    timed: list[float] = []

    def clock() -> float:
        return sum(timed)

    seconds = timer.seconds
    timer.seconds = lambda trial: timed.append(seconds(trial)) or timed[-1]  # type: ignore
    found = measure_activations(timer, GPU, 3.0, clock)
    assert (found.q8_pays, timed) == (True, [4.0, 1.0, 1.0, 0.5])
    timed.clear()
    assert measure_activations(timer, GPU, 12.0, clock).q8_pays
    assert timed == [4.0, 1.0, 4.0, 1.0, 4.0, 1.0, 1.0, 0.5]


@pytest.mark.parametrize("shape", ["decode", "prefill"])
def test_a_wrong_result_is_named_and_not_chosen(shape: str) -> None:
    fast = {("decode", True): 0.1, ("prefill", True): 0.1}
    found = measure_activations(FakeTimer(fast, {(shape, True): "7 results are wrong"}), GPU)
    assert (found.q8_pays, found.fault) == (False, "7 results are wrong")
    assert all(row.name != "q8 × q8" or not row.chosen for row in found.rows({
        "decode": 1, "prefill": 1,
    }))  # fmt: skip


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
