"""Split RMSNorm: against the reference, and bit-identical to the norm folded into the matmul."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpu import ops
from gpu.checks.quantize_activations import EPS, check_rms_norm_split
from gpu.checks.rig import Array, normal, plain_rows
from gpu.ops import RmsNormSplit
from gpu.ops.rms_norm_split import MIN_SPLIT_ROWS
from gpu.webgpu.plan import Recorder
from tests.gpu.ops.rig import TUNINGS, Rig, tuned

pytestmark = pytest.mark.parity


@pytest.mark.parametrize("tuning", TUNINGS)
@pytest.mark.parametrize("k", [1, 31, 33, 300, 576, 1100])
def test_rows_times_their_gain_with_their_scales(rig: Rig, k: int, tuning: str) -> None:
    check_rms_norm_split(tuned(rig, tuning), k)


def test_buffers_too_small_for_the_rows_are_refused(rig: Rig) -> None:
    batch, norm = rig.batch(plain_rows(8)), ops.Norm(rig.memory.zeros("gain", (64,)), EPS)
    x, small = rig.memory.zeros("x", (8, 64)), RmsNormSplit.make(64, 4, rig.memory)
    with pytest.raises(ValueError, match=r"norm: .* is too small for 8 rows of 50"):
        ops.rms_norm_split(Recorder(rig.device, rig.kernels), batch, "norm", x, 50, norm, small)


@pytest.mark.parametrize("tuning", TUNINGS)
@pytest.mark.parametrize("blocks", [1, 3, 18, 35])
@pytest.mark.slow
def test_matmul_has_the_same_bits_with_a_split_norm_and_without(
    rig: Rig, blocks: int, tuning: str
) -> None:
    rig, k, n = tuned(rig, tuning), 32 * blocks - 5, 70
    rng = np.random.default_rng(blocks)
    x, gain = normal(rng, MIN_SPLIT_ROWS, k), rng.uniform(0.5, 1.5, k).astype(np.float32)
    weight, norm = rig.matrix(normal(rng, n, k), "f16"), ops.Norm(rig.gain(gain), EPS)
    batch, given = rig.batch(plain_rows(MIN_SPLIT_ROWS)), rig.input("x", x)

    def product(batch: ops.Batch) -> Array:
        y = rig.output(MIN_SPLIT_ROWS, n)
        recorded = []

        def record(rec: Recorder) -> None:
            ops.matmul(rec, batch, "product", given, weight, y.tensor, norm=norm)
            recorded.extend(dispatch.label for dispatch in rec.plan.dispatches)

        rig.run(record)
        in_parts = ["product.norm"] if batch.rms_norm_split else []
        assert recorded == [*in_parts, "product"]
        return y.read().view(np.uint32)

    assert np.array_equal(product(batch), product(replace(batch, rms_norm_split=None)))
