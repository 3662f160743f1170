"""Devices that are as inexact as WGSL allows: what they compute, and that no code rests on it."""

from __future__ import annotations

import re
from importlib import resources

import numpy as np
import pytest

from gpu.checks.kv_cache import pool_words
from gpu.checks.kv_writes import SOMEWHERE
from gpu.checks.quantize_activations import quantize, unpack_quantized_rows
from gpu.checks.quantize_kv import store, stored
from gpu.checks.rig import Array
from gpu.checks.shift_kv import MovedCache
from gpu.kv.formats import pack_block
from gpu.reference import kv as reference
from gpu.webgpu.device import Device
from gpu.webgpu.kernels import Kernels
from tests.gpu.inexact import EXACT, FACTORS, LOGARITHMS, SIGNS, WAYS, called, inexact
from tests.gpu.ops.rig import Rig
from tests.gpu.other_devices import make_inexact

HEADS = (1, 1, 256)
N_ROWS = len(SOMEWHERE.slots)


@pytest.fixture(params=[None, *WAYS], ids=str)
def inexact_rig(
    request: pytest.FixtureRequest, device: Device, monkeypatch: pytest.MonkeyPatch
) -> Rig:
    """The device as it is, and inexact in every way."""
    if request.param:
        make_inexact(monkeypatch, request.param)
    return Rig(device, Kernels(device))


def between_codes(sizes: Array, n: int) -> Array:
    """Return for each size numbers halfway between two codes out of ±n, as nearly as float32 can
    be, and those beside them: (*sizes.shape, 3n)."""
    halves = ((np.arange(n) + 0.5) * sizes[..., None] / n).astype(np.float32)
    beside = [np.nextafter(halves, np.float32(end)) for end in (0, np.inf)]
    return np.concatenate([halves, *beside], axis=-1)


def blocks_between(n: int, largest: float, block: int) -> Array:
    """Return new heads (N_ROWS, 1, 256) whose blocks hold their largest number first, and then
    numbers between two codes."""
    rng = np.random.default_rng(n)
    sizes = (rng.uniform(0.01, largest, (N_ROWS, HEADS[2] // block))).astype(np.float16)
    found = between_codes(sizes.astype(np.float64), n)
    made = rng.choice(found, size=block, axis=-1) * rng.choice([-1, 1], block).astype(np.float32)
    made[..., 0] = sizes
    return np.asarray(made.reshape(N_ROWS, 1, HEADS[2]), np.float32)


@pytest.mark.parametrize(("dtype", "name", "n"), [("q8", "q8", 127), ("q8q4", "q4", 15)])
def test_a_number_between_two_codes_gets_the_nearer_on_every_device(
    inexact_rig: Rig, dtype: str, name: str, n: int
) -> None:
    block = pack_block(HEADS[2])
    x = blocks_between(n, 30.0, block)
    if name == "q4":  # from a minimum of 0
        x = np.abs(x)
        x[..., 1::block] = 0
    q = np.zeros((N_ROWS, HEADS[2]), np.float32)
    found = store(inexact_rig, HEADS, dtype, SOMEWHERE, x, x, q)
    words = found.token_words(0 if name == "q8" else 1)
    codes, scale = reference.unpack(name, words, 1, HEADS[2], block)
    want = reference.encode(name, x[..., None, :].astype(np.float64), block, scale)
    assert np.array_equal(codes, want), f"{(codes != want).sum()} of {codes.size} codes"


@pytest.mark.parametrize("way", SIGNS)
def test_codes_are_the_same_on_every_device(
    device: Device, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    exact = codes(Rig(device, Kernels(device)))
    make_inexact(monkeypatch, way)
    for name, found in codes(Rig(device, Kernels(device))).items():
        differ = found != exact[name]
        assert not differ.any(), f"{name}: {differ.sum()} of {differ.size}"


def codes(rig: Rig) -> dict[str, Array]:
    """Return int8 rows, and quantised caches after their heads were stored or moved."""
    sizes = np.random.default_rng(1).uniform(0.01, 9, (6, 16)).astype(np.float32)
    rows = np.concatenate([sizes[..., None], between_codes(sizes, 127)[..., 11::25]], axis=-1)
    words = quantize(rig, rows.reshape(6, 256))
    heads = stored(rig, (3, 3, 80), "rotated4")
    moved = {
        dtype: pool_words(rig.memory, MovedCache(rig, (4, 2, 24), dtype, "factor").pools[0])
        for dtype in ("q8", "rotated4")
    }
    return {
        "int8 rows": unpack_quantized_rows(words)[0],
        "rotated4": np.stack(heads.words),
        **{f"moved {dtype}": found for dtype, found in moved.items()},
    }


def test_results_move_by_most_of_what_wgsl_allows(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the other tests would hold for nothing."""
    x = np.random.default_rng(0).normal(size=(4, 320)).astype(np.float32)
    scales = []
    for way in (None, "up", "down"):
        with monkeypatch.context() as patch:
            if way:
                make_inexact(patch, way)
            words = quantize(Rig(device, Kernels(device)), x)
            scales.append(unpack_quantized_rows(words)[1].astype(np.float32).view(np.int32))
    exact, up, down = scales
    assert {*np.unique(up - exact)} == {*np.unique(exact - down)} == {1, 2}, "last places"


def test_divisions_and_functions_are_found_by_their_operands() -> None:
    source = (
        "override N: u32;\nconst HALF = N / 2u;\nconst STEP = 1.0 / 3.0;\n"
        "fn f(x: f32, i: u32) -> f32 {\n"
        "  let rows = i / HALF + i / (N - 1u); // a / b\n"
        "  var y = -x / exp(x) * f32(rows / HALF);\n"
        "  y /= sums[i].x;\n"
        "  return y + log(x) + x * (1.0 / 127.0);\n}\n"
    )
    found = inexact(source, "up")
    assert "let rows = i / HALF + i / (N - 1u); \n" in found
    up, down = 1 + 2.0**-23, 1 - 2.0**-23
    assert f"-x / (exp((x) * {down}) * {up}) * {up} * f32(rows / HALF);" in found
    assert f"y = y / sums[i].x * {up};" in found
    assert "return y + inexact_log(x, 1.0) + x * (1.0 / 127.0);" in found
    assert f"-x / (exp((x) * {up}) * {down}) * {up}" in inexact(source, "mixed")
    unfused = inexact("return fma(a, fma(a, 2.0, b), min(a, 1.0));", "unfused").replace(" ", "")
    assert unfused == "return((a)*(((a)*(2.0)+(b)))+(min(a,1.0)));"
    with pytest.raises(ValueError, match="the accuracy of sin is not listed"):
        inexact("fn f(x: f32) -> f32 { return sin(x); }", "up")


def test_shaders_call_no_function_of_unknown_accuracy() -> None:
    """sin and cos may be wrong by 2⁻¹¹, and tanh by 1e-5: angles come from the host."""
    files = (resources.files("gpu") / "shaders").rglob("*.wgsl")  # type: ignore[attr-defined]
    source = "\n".join(file.read_text("utf-8") for file in files if file.parent.name != "bench")
    unknown = called(re.sub(r"//[^\n]*", "", source)) - EXACT - FACTORS.keys() - set(LOGARITHMS)
    assert not unknown
