"""Rows rounded to bytes, for products whose weights are whole numbers on grids themselves, so that
four multiply-adds are one instruction.

Bytes cost an input of r rows of K numbers one dispatch, which reads 4rK bytes (and the gain) and
writes 1.5rK, a grid of 16 bytes for each 32 numbers; its product then reads these. Rows of samples
stay as they are: what is lost there goes straight to the logits, and only the output head has them.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpu.checkpoint.matrix import Matrix
from gpu.ops.batch import Batch, expect_shape
from gpu.ops.norms import Norm, lanes_over_a_row
from gpu.webgpu.buffers import Memory, Tensor, padded
from gpu.webgpu.plan import Recorder

EVEN_ODD = {"q8": False, "q4": True}
"""Of the storage types whose products can take bytes: do they want a block's even numbers first?"""

BLOCK_WORDS = 12
"""Of 32 numbers."""


def to_bytes(
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
    """y (rows, `row_words(k)`) = [norm](x) as bytes, for x (rows, k padded), `each` rows for each
    row of the step. `even_odd`: the even numbers of a block before the odd ones."""
    expect_shape(x, (padded(k),), label)
    expect_shape(y, (row_words(k),), label)
    n_rows = batch.n_rows * each
    if 4 * n_rows * row_words(k) > y.n_bytes:
        raise ValueError(f"{label}: {y.n_bytes:,} bytes have no room for {y!r}")
    rec.dispatch(
        label,
        "to_bytes",
        {"step": batch.step, "x": x, "gain": norm.gain if norm else batch.unread, "y": y},
        (n_rows, 1, 1),
        {
            "K": k,
            "BLOCKS": padded(k) // 32,
            "EPS": norm.eps if norm else 0.0,
            "NORM": norm is not None,
            "EVEN_ODD": even_odd,
            "EACH": each,
            "LANES": lanes_over_a_row(rec.device.info),
        },
    )


def row_words(k: int) -> int:
    """Words of a row of k numbers: see shaders/lib/byte_rows.wgsl."""
    return BLOCK_WORDS * (padded(k) // 32)


def room_for_bytes(memory: Memory, matrices: Iterable[Matrix], max_rows: int) -> Tensor | None:
    """For `max_rows` rows of what any of these is multiplied with; None where none takes bytes."""
    widths = [matrix.k for matrix in matrices if matrix.dtype in EVEN_ODD]
    if not widths:
        return None
    return memory.zeros("byte_rows", (max_rows, max(map(row_words, widths))), "u32")
