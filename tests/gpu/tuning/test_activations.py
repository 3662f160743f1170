"""Choosing whether products with q8 and q4 weights take bytes: by measured speeds, or as told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from gpu.engine.engine import Engine
from gpu.errors import ModelError
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.tuning.product_timer import Trial
from gpu.tuning.products import measure_products
from gpu.webgpu.device import Device
from gpu.webgpu.tiling import GPU
from tests.gpu import random_llama

Part = tuple[str, bool]


@dataclass
class FakeTimer:
    """A device on which products take 1 s, unless `seconds_of` (shape, bytes) says else. `wrong`:
    what is wrong with results."""

    seconds_of: Mapping[Part, float] = field(default_factory=dict)
    wrong: Mapping[Part, str] = field(default_factory=dict)
    begun: list[Part] = field(default_factory=list)

    def begin(self, trial: Trial) -> str:
        self.begun.append((trial.shape, trial.bytes))
        return self.wrong.get((trial.shape, trial.bytes), "")

    def seconds(self, trial: Trial) -> float:
        return self.seconds_of.get((trial.shape, trial.bytes), 1.0)


def test_bytes_that_are_faster_are_chosen() -> None:
    timer = FakeTimer({("decode", True): 0.5, ("prefill", True): 0.8})
    found = measure_products(timer, replace(GPU, bytes=True))
    assert found.bytes_pay
    rows = found.rows({"decode": 10**9, "prefill": 4 * 10**9})
    assert [(r.decode_gweights, r.prefill_gflops, r.chosen) for r in rows] == [
        (1.0, 8.0, False), (2.0, 10.0, True),
    ]  # fmt: skip
    assert timer.begun == [
        ("decode", False), ("decode", True), ("prefill", False), ("prefill", True),
    ]  # fmt: skip


def test_what_hardly_gains_in_decode_is_not_tried_in_prefill() -> None:
    timer = FakeTimer({("decode", True): 0.95, ("prefill", True): 0.1})
    found = measure_products(timer, GPU)
    assert not found.bytes_pay
    assert {shape for shape, _ in timer.begun} == {"decode"}
    rows = found.rows({"decode": 10**9, "prefill": 10**9})
    assert [(row.prefill_gflops, row.chosen) for row in rows] == [(None, True), (None, False)]


def test_what_loses_in_prefill_is_not_chosen() -> None:
    lost = {("decode", True): 0.5, ("prefill", True): 1.1}
    assert not measure_products(FakeTimer(lost), GPU).bytes_pay
    equal = lost | {("prefill", True): 1.01}
    assert measure_products(FakeTimer(equal), GPU).bytes_pay


def test_a_device_that_is_slow_is_timed_once() -> None:
    """Each product, also after the deadline: without prefill nothing could be chosen."""
    times = {("decode", False): 4.0, ("decode", True): 1.0, ("prefill", True): 0.5}
    timer = FakeTimer(times)
    timed: list[float] = []

    def clock() -> float:
        return sum(timed)

    seconds = timer.seconds
    timer.seconds = lambda trial: timed.append(seconds(trial)) or timed[-1]  # type: ignore
    found = measure_products(timer, GPU, 3.0, clock)
    assert (found.bytes_pay, timed) == (True, [4.0, 1.0, 1.0, 0.5])
    timed.clear()
    assert measure_products(timer, GPU, 12.0, clock).bytes_pay
    assert timed == [4.0, 1.0, 4.0, 1.0, 4.0, 1.0, 1.0, 0.5]


@pytest.mark.parametrize("shape", ["decode", "prefill"])
def test_a_wrong_result_is_named_and_not_chosen(shape: str) -> None:
    fast = {("decode", True): 0.1, ("prefill", True): 0.1}
    found = measure_products(FakeTimer(fast, {(shape, True): "7 results are wrong"}), GPU)
    assert (found.bytes_pay, found.fault) == (False, "7 results are wrong")
    assert all(row.name != "q8 × bytes" or not row.chosen for row in found.rows({
        "decode": 1, "prefill": 1,
    }))  # fmt: skip


def test_a_model_does_as_it_is_told_or_as_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(device: Device, progress: Any) -> Device:
        return replace(device, tuning=replace(device.tuning, bytes=True))

    monkeypatch.setattr("gpu.runners.wgpu_runner.tuned", measured)
    for dtype, probe, products, expected in (
        ("q8", False, "auto", "float"),
        ("q8", True, "auto", "bytes"),
        ("q8", True, "float", "float"),
        ("f16", True, "bytes", "float"),
    ):
        folder = random_llama.folder("odd172_bias")
        runner = WgpuRunner.load(folder, dtype=dtype, probe=probe, products=products)
        assert runner.products == expected
        runner.close()


def test_an_engine_says_what_its_products_are_given() -> None:
    engine = Engine.load(random_llama.folder("odd172_bias"), dtype="q4", products="bytes")
    assert engine.info.products == "bytes"
    runner = engine._thread.runner
    assert isinstance(runner, WgpuRunner)
    plan = runner.plan_for(1, 1, capture=False).plan
    rounded = [dispatch for dispatch in plan.dispatches if dispatch.kernel.name == "to_bytes"]
    assert len(rounded) == 4 * engine.config.n_layers, "not the output head's"
    engine.close()


def test_what_there_is_not_is_refused() -> None:
    folder = random_llama.folder("odd172_bias")
    with pytest.raises(ModelError, match="products bytes is for --backend wgpu"):
        Engine.load(folder, dtype="q8", products="bytes", backend="torch")
    with pytest.raises(ModelError, match="supported: auto, float, bytes"):
        Engine.load(folder, dtype="q8", products="nibbles")
