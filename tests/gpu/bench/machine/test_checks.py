"""The checks of a report cover every op, weight format and KV format, find no fault where there is
none, and find one that is."""

from __future__ import annotations

import inspect
from dataclasses import replace

import numpy as np
import pytest

from gpu import ops
from gpu.bench.machine import model_checks
from gpu.bench.machine.checks import CHECKS
from gpu.bench.machine.child import run_check
from gpu.bench.machine.rig import POISON, Rig, plain_rows
from gpu.checkpoint.packing import FORMATS
from gpu.config import MODEL_TYPES
from gpu.kv.formats import KV_FORMATS
from gpu.webgpu import kernels as kernels_module
from gpu.webgpu.device import Device
from gpu.webgpu.kernels import Kernels

QUICK = {
    "matmul q4 with int8 activations", "embed f16", "quantize_activations", "rms_norm_split",
    "qk_norm_rope", "attention rotated4", "attention_merge", "attention_weights q8",
    "quantize_kv q8q4", "inverse_hadamard", "shift_quantized_kv q8q4", "norm",
    "position_embedding", "scale_heads",
    "scale_residual", "steer", "layer_stats", "lora_expand", "moe_topk", "moe_permute",
    "moe_matmul q8", "moe_combine", "moe_expert_norms", "sample",
}  # fmt: skip
"""Checks in every run of the tests; the others are slow, as they compile many kernels."""
QUICK_MODELS = {"gpt2 f32", "llama q4, f16 cache"}


@pytest.fixture
def own_rig(device: Device) -> Rig:
    return Rig(device)


def some_slow(names: object, quick: set[str]) -> list[object]:
    return [
        name if name in quick else pytest.param(name, marks=pytest.mark.slow)
        for name in names  # type: ignore[attr-defined]
    ]


@pytest.mark.parity
@pytest.mark.parametrize("name", some_slow(CHECKS, QUICK))
def test_every_op_is_right_here(own_rig: Rig, name: str) -> None:
    found = run_check(CHECKS[name], own_rig)
    assert (found.status, found.note) == ("ok", "")
    assert found.figures["numbers"] > 0
    assert found.figures["of_bound"] <= 1


@pytest.mark.parity
@pytest.mark.parametrize("name", some_slow(model_checks.CHECKS, QUICK_MODELS))
def test_every_tiny_model_is_right_here(own_rig: Rig, name: str) -> None:
    found = run_check(model_checks.CHECKS[name], own_rig)
    assert (found.status, found.note) == ("ok", "")
    assert found.figures["numbers"] > 0


def test_every_op_has_a_check() -> None:
    recorded = {
        name
        for name in ops.__all__
        if inspect.isfunction(op := getattr(ops, name))
        and "rec" in inspect.signature(op).parameters
    }
    assert recorded == {name.split()[0] for name in CHECKS}
    assert set(CHECKS) >= QUICK


def test_every_format_and_every_architecture_has_a_check() -> None:
    for op in ("matmul", "qkv", "moe_matmul"):
        assert set(CHECKS) >= {f"{op} {dtype}" for dtype in FORMATS}
    for op in ("attention", "attention_weights"):
        assert set(CHECKS) >= {f"{op} {dtype}" for dtype in KV_FORMATS}
    assert {name.split()[1] for name in CHECKS if name.startswith("shift_")} == set(KV_FORMATS)
    assert set(model_checks.CHECKS) >= {f"{name} f32" for name in MODEL_TYPES}
    names = " ".join(model_checks.CHECKS)
    assert all(f"{dtype}, " in names for dtype in FORMATS)
    assert all(f", {dtype} cache" in names for dtype in KV_FORMATS if dtype != "f32")


FAULTS = {
    "steer": ("steer", "x[at] + v", "x[at] - v"),
    "norm": ("norm", "if (RESIDUAL) { v +=", "if (RESIDUAL) { v -="),
    "scale_heads": ("scale_heads", "step.rows[row].slot", "step.rows[0].slot"),
    "moe_topk": ("moe_topk", "exp(", "exp2("),
    "attention rotated4": ("attention", "exp2(", "exp("),
    "sample": ("sample", "0xd2511f53u", "0xd2511f51u"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_shader_is_reported(
    device: Device, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    shader, right, wrong = FAULTS[name]
    whole = kernels_module.compose

    def compose(of: str, *rest: object) -> str:
        source: str = whole(of, *rest)  # type: ignore[arg-type]
        if of != shader:
            return source
        assert right in source, f"{shader}.wgsl has no {right!r} any more"
        return source.replace(right, wrong)

    monkeypatch.setattr(kernels_module, "compose", compose)
    found = run_check(CHECKS[name], Rig(device, Kernels(device)))
    assert found.status == "wrong"
    assert found.note


def test_a_model_whose_attention_is_wrong_is_reported(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = kernels_module.compose

    def compose(of: str, *rest: object) -> str:
        source: str = whole(of, *rest)  # type: ignore[arg-type]
        return source.replace("exp2(", "exp(") if of == "attention" else source

    monkeypatch.setattr(kernels_module, "compose", compose)
    found = run_check(model_checks.CHECKS["gpt2 f32"], Rig(device))
    assert found.status == "wrong"
    assert found.figures["of_bound"] > 10


def test_a_number_outside_its_bound_or_missing_is_noted(own_rig: Rig) -> None:
    want = np.ones(4)
    for wrong in (1.1, np.nan, np.inf):
        own_rig.found = replace(own_rig.found, wrong="")
        own_rig.compare("x", np.array([1, 1, wrong, 1]), want, 1e-3)
        assert own_rig.found.wrong.startswith("x: 1 of 4 numbers are wrong, the worst at (2,)")
    own_rig.found = replace(own_rig.found, wrong="")
    own_rig.compare("x", np.array([1, 1, 1.0005, 1]), want, 1e-3)
    assert not own_rig.found.wrong


def test_a_write_beside_the_result_is_noted(own_rig: Rig) -> None:
    out = own_rig.output(2, 5)
    own_rig.batch(plain_rows(2))
    changed = out.before.copy()
    changed[3, 1] = 7
    own_rig.memory.write(out.tensor, changed)
    out.read()
    assert own_rig.found.wrong.startswith("wrote to row 3, column 1, outside the result")
    assert np.isnan(np.uint32(POISON).view(np.float32))
