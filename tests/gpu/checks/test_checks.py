"""The checks of a report cover every op, weight format and KV format, find no fault where there is
none, and find one that is. The cases themselves are compared with more of their kind in
tests/gpu/ops."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from gpu import ops
from gpu.bench.machine.child import run_check
from gpu.checkpoint.packing import FORMATS
from gpu.checks import models
from gpu.checks.difference import WrongResult
from gpu.checks.ops import CHECKS
from gpu.checks.rig import POISON, Rig, plain_rows
from gpu.config import MODEL_TYPES
from gpu.kv.formats import KV_FORMATS
from gpu.webgpu import kernels as kernels_module
from gpu.webgpu.device import Device
from gpu.webgpu.kernels import Kernels

QUICK = {"qk_norm_rope", "attention_merge", "steer", "moe_topk", "lora_expand", "sample"}
"""Checks in every run of the tests: an op of each kind, with little to compile. In the others a
case differs from those of tests/gpu/ops only in its sizes."""
QUICK_MODELS = {"gpt2 f32"}


@pytest.fixture(scope="module")
def own_rig(device: Device, kernels: Kernels) -> Rig:
    return Rig(device, kernels)


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
@pytest.mark.parametrize("name", some_slow(models.CHECKS, QUICK_MODELS))
def test_every_tiny_model_is_right_here(own_rig: Rig, name: str) -> None:
    found = run_check(models.CHECKS[name], own_rig)
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
    assert set(models.CHECKS) >= {f"{name} f32" for name in MODEL_TYPES}
    names = " ".join(models.CHECKS)
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
    replace_in_shader(monkeypatch, *FAULTS[name])
    found = run_check(CHECKS[name], Rig(device, Kernels(device)))
    assert found.status == "wrong"
    assert found.note


def test_a_model_whose_attention_is_wrong_is_reported(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_in_shader(monkeypatch, "attention", "exp2(", "exp(")
    found = run_check(models.CHECKS["gpt2 f32"], Rig(device))
    assert found.status == "wrong"
    assert found.figures["of_bound"] > 10


def replace_in_shader(monkeypatch: pytest.MonkeyPatch, shader: str, right: str, wrong: str) -> None:
    whole = kernels_module.compose

    def compose(of: str, *rest: Any, **options: Any) -> str:
        source = whole(of, *rest, **options)
        if of != shader:
            return source
        assert right in source, f"{shader}.wgsl has no {right!r} any more"
        return source.replace(right, wrong)

    monkeypatch.setattr(kernels_module, "compose", compose)


def test_a_number_outside_its_bound_or_missing_is_wrong(own_rig: Rig) -> None:
    want = np.ones(4)
    for wrong in (1.1, np.nan, np.inf):
        with pytest.raises(WrongResult, match=r"x, 2: 1 of 4 numbers are wrong, .* at \(2,\)"):
            own_rig.compare("x", 2, np.array([1, 1, wrong, 1]), want, 1e-3)
    with pytest.raises(WrongResult, match=r"x, 2: shape \(3,\) instead of \(4,\)"):
        own_rig.compare("x", 2, want[1:], want, 1e-3)
    own_rig.compare("x", 2, np.array([1, 1, 1.0005, 1]), want, 1e-3)


def test_a_write_outside_the_result_is_wrong(own_rig: Rig) -> None:
    out = own_rig.output(2, 5)
    own_rig.batch(plain_rows(2))
    changed = out.before.copy()
    changed[3, 1] = 7
    own_rig.memory.write(out.tensor, changed)
    with pytest.raises(WrongResult, match="to row 3, column 1, outside the result"):
        out.read()
    assert np.isnan(np.uint32(POISON).view(np.float32))
