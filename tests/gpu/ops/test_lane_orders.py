"""Other orders of the lanes are permutations, change no bit of a right kernel, and show a race."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from gpu import ops
from gpu.checks.rig import plain_rows
from gpu.webgpu import kernels as kernels_module
from gpu.webgpu.device import Device
from gpu.webgpu.kernels import Kernels, compose
from gpu.webgpu.plan import Recorder
from gpu.webgpu.tiling import GPU
from tests.gpu.ops.lane_orders import ORDERS, renumbered
from tests.gpu.ops.rig import Rig, as_kind

N, K = 33, 300


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("n", [1, 7, 8, 36, 64, 160, 256])
def test_every_order_is_a_permutation(order: str, n: int) -> None:
    text = ORDERS[order].format(n=n, lane="lane")
    text = re.sub(r"(\d)u\b", r"\1", text).replace("select", "choose")

    def choose(otherwise: int, value: int, condition: bool) -> int:
        return value if condition else otherwise

    numbers = {eval(text, {"choose": choose, "lane": lane}) for lane in range(n)}
    assert numbers == set(range(n))


def test_kernels_without_numbered_lanes_stay_as_they_are() -> None:
    source = compose("steer", {})
    assert renumbered(source, "reversed") == source


def multiply(rig: Rig) -> None:
    rng = np.random.default_rng(3)
    matrix = rig.matrix(rng.normal(size=(N, K)).astype(np.float32), "q8")
    x = rig.input("x", rng.normal(size=(3, K)).astype(np.float32))
    y = rig.output(3, N)
    batch = rig.batch(plain_rows(3), bucket=4)

    def record(rec: Recorder) -> None:
        ops.matmul(rec, batch, "matmul", x, matrix, y.tensor)

    rig.run(record)


@pytest.fixture
def gpu_rig(device: Device, monkeypatch: pytest.MonkeyPatch) -> Rig:
    """A rig with the kernels for GPUs that runs them in every order."""
    monkeypatch.setattr(Rig, "lane_orders", True)
    monkeypatch.setattr(Rig, "races", False)
    kind = as_kind(device, software=False)
    assert kind.tuning == GPU
    return Rig(kind, Kernels(kind))


def test_a_right_kernel_has_the_same_bits_in_every_order(gpu_rig: Rig) -> None:
    multiply(gpu_rig)


def test_a_missing_barrier_is_noticed(gpu_rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it a lane multiplies what others have not copied yet, in one order at least."""
    whole = kernels_module.compose

    def without_barrier(*args: Any, **options: Any) -> str:
        source = whole(*args, **options)
        anchor = "    store_x(first, lane);\n    workgroupBarrier();\n"
        assert anchor in source
        return source.replace(anchor, anchor.replace("    workgroupBarrier();\n", ""))

    monkeypatch.setattr(kernels_module, "compose", without_barrier)
    with pytest.raises(AssertionError, match="depends on the order of the lanes"):
        multiply(gpu_rig)
