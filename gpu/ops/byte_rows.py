"""What products are given: rows as they are, or rounded to bytes where weights are whole numbers on
grids themselves, so that four multiply-adds are one instruction.

Bytes cost an input of r rows of K numbers one dispatch, which reads 4rK bytes (and the gain) and
writes 1.5rK, a grid of 16 bytes for each 32 numbers; its product then reads these. Rows of samples
stay as they are: what is lost there goes straight to the logits, and only the output head has them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from gpu.checkpoint.matrix import Matrix
from gpu.ops.batch import Batch, expect_shape
from gpu.ops.norms import Norm, lanes_over_a_row
from gpu.webgpu.buffers import Memory, Tensor, padded
from gpu.webgpu.kernels import Number
from gpu.webgpu.plan import Recorder

EVEN_ODD = {"q8": False, "q4": True}
"""Of the storage types whose products can take bytes: do they want a block's even numbers first?"""

BLOCK_WORDS = 12
"""Of 32 numbers."""


@dataclass(frozen=True, slots=True)
class Operand:
    """How a shader that uses shaders/lib/product.wgsl, or what stands in for it, comes by its rows:
    what it binds, which constants it has and which files it is made of."""

    tensors: dict[str, Tensor]
    constants: dict[str, Number]
    lib: dict[str, str]


def operand(
    rec: Recorder,
    batch: Batch,
    label: str,
    x: Tensor,
    weight: Matrix,
    norm: Norm | None,
    *,
    each: int = 1,
    sampled: bool = False,
) -> Operand:
    """[norm](x) for a product with `weight`, `each` rows for each row of the step; `sampled`: for
    some of them only. `to_bytes` is recorded where the product takes bytes."""
    if norm and not norm.is_rms:
        raise ValueError(f"{label}: a product takes RMSNorm alone; record `norm` before it")
    expect_shape(x, (padded(weight.k),), label)
    if batch.byte_rows is None or weight.dtype not in EVEN_ODD or sampled:
        gain, eps = (norm.gain, norm.eps) if norm else (batch.unread, 0.0)
        constants: dict[str, Number] = {"EPS": eps, "NORM": norm is not None}
        return Operand({"x": x, "gain": gain}, constants, {"weight": f"weight_{weight.dtype}"})
    y = replace(batch.byte_rows, shape=(batch.n_rows * each, row_words(weight.k)))
    even_odd = EVEN_ODD[weight.dtype]
    to_bytes(rec, batch, f"{label}.bytes", x, weight.k, y, norm=norm, even_odd=even_odd, each=each)
    return Operand({"x": y}, {}, lib_of_bytes(weight.dtype))


def lib_of_bytes(dtype: str) -> dict[str, str]:
    """Which files a product of bytes with weights stored as `dtype` is made of."""
    return {
        "product": "product_bytes",
        "weight": f"weight_{dtype}",
        "weight_bytes": f"weight_bytes_{dtype}",
    }


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
