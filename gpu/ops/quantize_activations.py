"""Activations as int8, for matmuls with q8 and q4 weights: four multiply-adds are one instruction.

Quantising r rows of K numbers is one dispatch that reads 4rK bytes (and the gain) and writes 1.5rK:
16 bytes of scales and sum per 32 numbers. The rows of the output head stay float32, because their
rounding errors would go straight to the logits.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpu.checkpoint.matrix import Matrix
from gpu.ops.batch import Batch, expect_shape
from gpu.ops.cost import NORM_FLOPS, Cost, StepSize, constants_of, cost_of_kernel
from gpu.ops.norms import Norm
from gpu.webgpu.buffers import Memory, Tensor, padded
from gpu.webgpu.device_policy import DevicePolicy
from gpu.webgpu.plan import Dispatch, Recorder

EVEN_ODD = {"q8": False, "q4": True}
"""Weight formats with int8 matmuls; True: the even numbers of a block come first."""

BLOCK_WORDS = 12
"""Words of a quantised block of 32 numbers."""
MIN_BLOCKS = 4
"""Fewest blocks that a workgroup rounds: one of fewer mostly repeats the norm."""
QUANTIZE_FLOPS = 4
"""Per number: compare with the largest, scale, round, add to the sum."""


def quantize_activations(
    rec: Recorder,
    batch: Batch,
    label: str,
    x: Tensor,
    k: int,
    y: Tensor,
    *,
    norm: Norm | None = None,
    even_odd: bool,
    each: int = 1,
) -> None:
    """y (rows, `quantized_row_words(k)`) = [norm](x) as int8, for x (rows, k padded) with `each`
    rows per row of the step. `even_odd`: the even numbers of a block come first."""
    expect_shape(x, (padded(k),), label)
    expect_shape(y, (quantized_row_words(k),), label)
    n_rows = batch.n_rows * each
    workgroups = row_workgroups(padded(k) // 32, n_rows, rec.device.policy)
    if 4 * n_rows * quantized_row_words(k) > y.n_bytes:
        raise ValueError(f"{label}: {y.n_bytes:,} bytes are too few for {y!r}")
    rec.dispatch(
        label,
        "quantize_activations",
        {"step": batch.step, "x": x, "gain": norm.gain if norm else None, "y": y},
        (workgroups, n_rows, 1),
        {
            "K": k,
            "BLOCKS": padded(k) // 32,
            "EPS": norm.eps if norm else 0.0,
            "NORM": norm is not None,
            "EVEN_ODD": even_odd,
            "EACH": each,
            "WORKGROUPS": workgroups,
            "LANES": rec.device.policy.row_lanes,
        },
    )


@cost_of_kernel("quantize_activations")
def quantize_activations_cost(dispatch: Dispatch, size: StepSize) -> Cost:
    """Operations: 4rK, + 4rK with a norm. Bytes: x, quantised rows, gain."""
    c = constants_of(dispatch)
    n_rows = size.n_rows * c["EACH"]
    written = 4 * dispatch.tensors["y"].shape[-1]
    cost = Cost(n_rows * QUANTIZE_FLOPS * c["K"], n_rows * (4 * c["K"] + written))
    return cost + Cost(n_rows * NORM_FLOPS * c["K"], 4 * c["K"]) if c["NORM"] else cost


def row_workgroups(n_blocks: int, n_rows: int, policy: DevicePolicy) -> int:
    """Return the workgroups that round one of `n_rows` rows of `n_blocks` blocks. The bits are the
    same for any number."""
    wanted = -(-policy.rounding_workgroups // n_rows)
    return max(1, min(wanted, n_blocks // MIN_BLOCKS))


def quantized_row_words(k: int) -> int:
    """Return the words of a row of k numbers; shaders/lib/quantized_rows.wgsl has the layout."""
    return BLOCK_WORDS * (padded(k) // 32)


def make_quantized_rows(memory: Memory, matrices: Iterable[Matrix], max_rows: int) -> Tensor | None:
    """Allocate `max_rows` quantised rows for the widest of these; None if none has int8 matmuls."""
    widths = [matrix.k for matrix in matrices if matrix.dtype in EVEN_ODD]
    if not widths:
        return None
    return memory.zeros("quantized_rows", (max_rows, max(map(quantized_row_words, widths))), "u32")
