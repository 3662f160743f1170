"""What a report measures: stress, products, attention, whole models."""

from __future__ import annotations

import time

import numpy as np
import pytest

from gpu.bench.machine import attention_speed, peers, speed, stress, sweep
from gpu.bench.machine.context import Context
from gpu.checkpoint.random_checkpoint import LLAMA_SHAPES
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.webgpu.device import Device
from gpu.webgpu.peaks import Peaks


@pytest.fixture
def measuring(device: Device) -> Context:
    """Ten minutes on a device whose peaks are known."""
    found = Context(device, "0", time.perf_counter() + 600)
    found.__dict__["peaks"] = Peaks(1e10, 1e11)
    return found


@pytest.mark.ci
def test_equal_steps_are_counted(measuring: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stress, "TIMES", 25)
    found = stress.repeat(measuring, "tiny", "f16", "decode", 1)
    assert (found.status, found.note) == ("ok", "")
    assert found.figures == {"rows": 1, "times": 25, "different": 0}


def test_a_step_that_gives_other_bits_is_wrong(
    measuring: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits, n = WgpuRunner.logits, 0

    def sometimes_off(self: WgpuRunner, step: object) -> object:
        nonlocal n
        n += 1
        found = logits(self, step)  # type: ignore[arg-type]
        if n == 7:
            found.view(np.uint32)[0, 3] ^= 1
        return found

    monkeypatch.setattr(stress, "TIMES", 10)
    monkeypatch.setattr(WgpuRunner, "logits", sometimes_off)
    found = stress.repeat(measuring, "tiny", "f16", "decode", 1)
    assert found.status == "wrong"
    assert found.note == "1 of 10 runs of the same step gave other bits than the first"


def test_too_few_repetitions_are_done_again_later(
    measuring: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    measuring.deadline = time.perf_counter()
    found = stress.repeat(measuring, "tiny", "f16", "decode", 1)
    assert found.status == "pending"


@pytest.mark.ci
def test_products_rotate_through_copies_and_are_measured(
    measuring: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "ROTATED_BYTES", 1 << 20)
    for dtype in ("f16", "q4"):
        found = sweep.measure(measuring, dtype, 96, 96).figures
        for rows in (1, 8, 64):
            assert found[f"gb_s_{rows}"] > 0
            flops = 2 * 96 * 96 * rows
            assert found[f"gflop_s_{rows}"] * found[f"ms_{rows}"] * 1e6 == pytest.approx(
                flops, rel=0.02
            )
        assert "ms_512" not in found  # a software device takes 128 rows
        assert 1.0 <= found["rotated_mb"] <= 1.1
        if dtype == "f16":
            assert found["gb_s_1"] * found["ms_1"] * 1e6 == pytest.approx(2 * 96 * 96, rel=0.02)
        assert found["of_bandwidth"] == pytest.approx(found["gb_s_1"] / 10, rel=0.05)


def test_copies_hold_different_memory_and_no_zeros(measuring: Context) -> None:
    timer = sweep.MatmulTimer(measuring, "q8", (96, 64), 3)
    weights = timer._weights
    assert len({id(weight.shards[0].tensor.buffer) for weight in weights}) == 3
    words = timer._timer.memory.read(weights[2].shards[0].tensor)
    assert np.count_nonzero(words) > 0.8 * words.size


def test_products_that_do_not_fit_or_take_too_long_are_left_out(measuring: Context) -> None:
    measuring.free = 1 << 20
    found = sweep.measure(measuring, "f16", 1 << 18, 4096)
    assert found.status == "left out"
    assert "2147 MB" in found.note
    measuring.free = None
    measuring.__dict__["peaks"] = Peaks(1e10, 1e5)
    found = sweep.measure(measuring, "f16", 64, 512)
    assert (found.status, found.figures) == ("pending", {})


def test_the_sizes_are_those_of_the_models(measuring: Context) -> None:
    assert sweep.matrices(LLAMA_SHAPES["llama1b"]) == {
        "qkv": (3072, 2048), "out": (2048, 2048), "gate_up": (16384, 2048), "down": (2048, 8192),
        "head": (128256, 2048),
    }  # fmt: skip
    names = [name for name, _ in sweep.cases(measuring)]
    for shape in ("smol135", "llama1b", "llama8b"):
        for dtype in ("f16", "q8", "q4"):
            assert f"{shape} gate_up {dtype}" in names


def test_attention_is_measured_by_context(measuring: Context) -> None:
    found = attention_speed.measure(measuring, "tiny", "q8", 256).figures
    assert found["ms_1"] > 0
    assert found["rows"] == 128
    assert found["ms_rows"] > found["ms_1"]
    measuring.__dict__["peaks"] = Peaks(1e10, 1e5)
    assert attention_speed.measure(measuring, "tiny", "q8", 256).status == "left out"


def test_a_whole_model_is_measured(measuring: Context) -> None:
    found = speed.measure(measuring, "tiny", "f16", {"f16": 1e-9})
    assert found.status == "ok"
    assert {"prefill_tok_s", "decode_tok_s", "gb_s", "of_bandwidth", "load_s"} <= set(found.figures)
    assert found.figures["prompt"] == 128


def test_models_that_do_not_fit_into_memory_or_time_are_not_loaded(measuring: Context) -> None:
    measuring.free = 1 << 30
    found = speed.measure(measuring, "llama8b", "q4", dict(speed.LOAD_S))
    assert found.status == "left out"
    assert "1.0 GiB are free" in found.note
    measuring.free, measuring.deadline = None, time.perf_counter() + 1
    found = speed.measure(measuring, "llama1b", "f16", dict(speed.LOAD_S))
    assert found.status == "pending"
    assert "the time was up: it needs about" in found.note


def test_a_peer_that_is_not_installed_is_left_out_with_the_reason(
    measuring: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "find_spec", lambda name: None)
    found = peers.measure(measuring, "llama.cpp")
    assert (found.status, found.note) == (
        "left out",
        "not installed (pip install llama-cpp-python)",
    )
    assert set(peers.PACKAGES) == set(peers.PEERS)
