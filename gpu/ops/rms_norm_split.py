"""RMSNorm as a dispatch before a matmul of many rows, in two tensors: x · gain, and a scale per
row.

Folded into a matmul (shaders/lib/matmul_tile.wgsl) the norm costs no dispatch, but every workgroup
that walks over a row repeats it. With few rows the loads of the weight hide this; with many rows
the matmul is bound by arithmetic, and the norm takes an eighth of its time or more. Split, it costs
3rK operations and 8rK bytes once, for r rows of K numbers.
"""

from __future__ import annotations

from gpu.ops.batch import Batch, RmsNormSplit, expect_shape
from gpu.ops.cost import Cost, StepSize, constants_of, cost_of_kernel
from gpu.ops.norms import Norm
from gpu.webgpu.buffers import Tensor, padded
from gpu.webgpu.plan import Dispatch, Recorder

MIN_SPLIT_ROWS = 16
"""Fewest rows of a step that splits the norm. Measured at 128; up to 8 rows are decoding."""
SPLIT_FLOPS = 3
"""Per number: square, add, multiply by the gain."""


def rms_norm_split(
    rec: Recorder, batch: Batch, label: str, x: Tensor, k: int, norm: Norm, parts: RmsNormSplit
) -> None:
    """parts.rows (rows, k padded) = x · gain, parts.scales (rows,) = 1 / sqrt(mean(x²) + eps).

    x is (rows, k padded). Sums have the same order as in a matmul that folds the norm in.
    """
    for tensor in (x, parts.rows):
        expect_shape(tensor, (padded(k),), label)
    n_rows, blocks = batch.n_rows, padded(k) // 32
    if 4 * n_rows * padded(k) > parts.rows.n_bytes or 4 * n_rows > parts.scales.n_bytes:
        raise ValueError(f"{label}: {parts} is too small for {n_rows} rows of {k}")
    chains, chain_vec4s = rec.device.tuning.norm_chains(blocks)
    rec.dispatch(
        label,
        "rms_norm_split",
        {"step": batch.step, "x": x, "gain": norm.gain, "y": parts.rows, "scales": parts.scales},
        (n_rows, 1, 1),
        {
            "K": k,
            "BLOCKS": blocks,
            "EPS": norm.eps,
            "CHAINS": chains,
            "CHAIN_VEC4S": chain_vec4s,
            "QUADS": rec.device.tuning.coalesced,
        },
    )


@cost_of_kernel("rms_norm_split")
def rms_norm_split_cost(dispatch: Dispatch, size: StepSize) -> Cost:
    """Operations: 3rK. Bytes: x, gain, y, scales."""
    k = constants_of(dispatch)["K"]
    return Cost(size.n_rows * SPLIT_FLOPS * k, 4 * (2 * size.n_rows * k + k + size.n_rows))
