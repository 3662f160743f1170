"""Matmul and attention have the same bits with their loops unrolled as with loops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpu.checkpoint.packing import FORMATS
from gpu.checks.attention import AttentionCase, attend
from gpu.checks.matmul import MatmulCase, MatmulNumbers, run_matmul
from gpu.checks.rig import Array, normal
from gpu.webgpu.device import Device
from gpu.webgpu.kernels import Kernels
from tests.gpu.ops.rig import Rig, as_kind

pytestmark = pytest.mark.parity


@pytest.fixture(scope="module")
def rigs(device: Device) -> tuple[Rig, Rig]:
    """The device posing as a GPU that keeps loops, and as one that has them unrolled."""
    gpu = as_kind(device, software=False)
    kinds = (replace(gpu, tuning=replace(gpu.tuning, unrolls_loops=on)) for on in (False, True))
    kernels = Kernels(gpu)
    rolled, unrolled = (Rig(kind, kernels) for kind in kinds)
    return rolled, unrolled


def test_the_two_share_no_kernel(rigs: tuple[Rig, Rig]) -> None:
    """Else the tests below would compare a kernel with itself."""
    case = MatmulCase(64, 8, "f32")
    numbers, kernels, n_kernels = MatmulNumbers.of(case), Kernels(rigs[0].device), []
    for rig in rigs:
        run_matmul(Rig(rig.device, kernels), case, numbers)
        n_kernels.append(len(kernels))
    assert n_kernels == [1, 2]


@pytest.mark.parametrize("norm", [False, True], ids=["plain", "norm"])
@pytest.mark.parametrize("rows", [1, 2, 4, 8, 16, 33])
@pytest.mark.parametrize("dtype", FORMATS)
def test_a_matmul(rigs: tuple[Rig, Rig], dtype: str, rows: int, norm: bool) -> None:
    case = MatmulCase(1100, 70, dtype, rows=rows, bucket=rows, norm=norm, bias=True, residual=True)
    numbers = MatmulNumbers.of(case)
    expect_same_bits(*(run_matmul(rig, case, numbers) for rig in rigs))


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 40])
@pytest.mark.parametrize("dtype", ["f32", "f16", "q8q4"])
def test_attention(rigs: tuple[Rig, Rig], dtype: str, rows: int) -> None:
    """40 rows share keys and values in workgroup memory."""
    at = tuple((slot, 200 - 3 * slot) for slot in range(rows))
    found = []
    for rig in rigs:
        policy = replace(rig.device.policy, shared_attention_workgroups=1)
        rig = Rig(replace(rig.device, policy=policy), rig.kernels)
        case, rng = AttentionCase((8, 2, 64), at, dtype, bucket=rows), np.random.default_rng(0)
        found.append(attend(rig, case, case.filled(rig, 0, rng), normal(rng, rows, case.width)))
    for rolled, unrolled in zip(*found, strict=True):
        expect_same_bits(rolled, unrolled)


def expect_same_bits(rolled: Array | None, unrolled: Array | None) -> None:
    assert rolled is not None
    assert unrolled is not None
    assert np.isfinite(rolled).all()
    assert np.array_equal(rolled.view(np.uint32), unrolled.view(np.uint32))
