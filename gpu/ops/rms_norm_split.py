"""RMSNorm in a dispatch before a product of many rows, in two parts: x · gain, and a scale a row.

Folded into a product (shaders/lib/product.wgsl) the norm costs no dispatch, but every workgroup
that walks over a row squares it and multiplies it by the gain again. Of few rows this hides behind
the weight's bytes; of many, where operations are what counts, it is an eighth of the product's time
and more. The parts cost r rows of K numbers 3rK operations and 8rK bytes, once.
"""

from __future__ import annotations

from gpu.ops.batch import Batch, NormParts, expect_shape
from gpu.ops.norms import Norm
from gpu.webgpu.buffers import Tensor, padded
from gpu.webgpu.plan import Recorder

MANY_ROWS = 16
"""From so many on parts are taken. Measured at 128; a step of 8 and fewer is one of decoding."""


def norm_parts(
    rec: Recorder, batch: Batch, label: str, x: Tensor, k: int, norm: Norm, parts: NormParts
) -> None:
    """parts.rows (rows, k padded) = x · gain, parts.scales (rows,) = 1 / sqrt(mean(x²) + eps), for
    x (rows, k padded). Sums are in the order in which a product of rows of k numbers has them."""
    for tensor in (x, parts.rows):
        expect_shape(tensor, (padded(k),), label)
    n_rows, blocks = batch.n_rows, padded(k) // 32
    if 4 * n_rows * padded(k) > parts.rows.n_bytes or 4 * n_rows > parts.scales.n_bytes:
        raise ValueError(f"{label}: {parts} has no room for {n_rows} rows of {k}")
    chains, chain_fours = rec.device.tuning.norm_chains(blocks)
    rec.dispatch(
        label,
        "norm_parts",
        {"step": batch.step, "x": x, "gain": norm.gain, "y": parts.rows, "scales": parts.scales},
        (n_rows, 1, 1),
        {
            "K": k,
            "BLOCKS": blocks,
            "EPS": norm.eps,
            "CHAINS": chains,
            "CHAIN_FOURS": chain_fours,
        },
    )
