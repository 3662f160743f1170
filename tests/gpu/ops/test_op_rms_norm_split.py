"""Split RMSNorm: against the reference, and bit-identical to the norm folded into the matmul."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpu import ops
from gpu.ops import RmsNormSplit
from gpu.ops.rms_norm_split import MIN_SPLIT_ROWS
from gpu.reference import ops as reference
from gpu.webgpu.plan import Recorder
from tests.gpu.ops.rig import ROUNDING, Array, Rig, compare, plain_rows
from tests.gpu.ops.test_op_matmul import EPS, TUNINGS, tuned

pytestmark = pytest.mark.parity


@pytest.mark.parametrize("tuning", TUNINGS)
@pytest.mark.parametrize("k", [1, 31, 33, 300, 576, 1100])
def test_rows_times_their_gain_with_their_scales(rig: Rig, k: int, tuning: str) -> None:
    rig, n_rows, bucket = tuned(rig, tuning), 5, 8
    rng = np.random.default_rng(k)
    x = (rng.normal(size=(n_rows, k)) * 30).astype(np.float32)
    x[1] = 0
    gain = rng.uniform(0.5, 1.5, k).astype(np.float32)
    rows, scales = rig.output("rows", n_rows, k), rig.output("scales", 1, n_rows, bucket)
    batch, given = rig.batch(plain_rows(n_rows), bucket=bucket), rig.input("x", x)
    norm = ops.Norm(rig.memory.upload("gain", np.pad(gain, (0, -k % 32))), EPS)
    parts = RmsNormSplit(rows.tensor, replace(scales.tensor, shape=(bucket,)))
    rig.run(lambda rec: ops.rms_norm_split(rec, batch, "norm", given, k, norm, parts))
    want, want_scales = reference.rms_norm_split(x.astype(np.float64), gain.astype(np.float64), EPS)
    compare("rms_norm_split.rows", k, rows.read(), want, ROUNDING * np.abs(want), seed=k)
    bound = (8 + np.sqrt(k)) * ROUNDING * want_scales
    compare("rms_norm_split.scales", k, scales.read()[0], want_scales, bound, seed=k)


def test_buffers_too_small_for_the_rows_are_refused(rig: Rig) -> None:
    batch, norm = rig.batch(plain_rows(8)), ops.Norm(rig.memory.zeros("gain", (64,)), EPS)
    x, small = rig.memory.zeros("x", (8, 64)), RmsNormSplit.make(64, 4, rig.memory)
    with pytest.raises(ValueError, match=r"norm: .* is too small for 8 rows of 50"):
        ops.rms_norm_split(Recorder(rig.device, rig.kernels), batch, "norm", x, 50, norm, small)


@pytest.mark.parametrize("tuning", TUNINGS)
@pytest.mark.parametrize("blocks", [1, 3, 18, 35])
@pytest.mark.bits
def test_matmul_has_the_same_bits_with_a_split_norm_and_without(
    rig: Rig, blocks: int, tuning: str
) -> None:
    rig, k, n = tuned(rig, tuning), 32 * blocks - 5, 70
    rng = np.random.default_rng(blocks)
    x, gain = rng.normal(size=(MIN_SPLIT_ROWS, k)), rng.uniform(0.5, 1.5, k)
    weight = rig.matrix(rng.normal(size=(n, k)).astype(np.float32), "f16")
    norm = ops.Norm(rig.memory.upload("gain", np.pad(gain, (0, 5)).astype(np.float32)), EPS)
    batch, given = rig.batch(plain_rows(MIN_SPLIT_ROWS)), rig.input("x", x.astype(np.float32))

    def product(batch: ops.Batch) -> Array:
        y = rig.output("y", MIN_SPLIT_ROWS, n)
        recorded = []

        def record(rec: Recorder) -> None:
            ops.matmul(rec, batch, "product", given, weight, y.tensor, norm=norm)
            recorded.extend(dispatch.label for dispatch in rec.plan.dispatches)

        rig.run(record)
        in_parts = ["product.norm"] if batch.rms_norm_split else []
        assert recorded == [*in_parts, "product"]
        return y.read().view(np.uint32)

    assert np.array_equal(product(batch), product(replace(batch, rms_norm_split=None)))
