"""What products are given: rows as they are, with the norm folded into the product; the parts of
their norm, where many rows are normalised; or rows rounded to bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpu.checkpoint.matrix import Matrix
from gpu.ops.batch import Batch, NormParts, expect_shape
from gpu.ops.byte_rows import EVEN_ODD, row_words, to_bytes
from gpu.ops.norm_parts import MANY_ROWS, norm_parts
from gpu.ops.norms import Norm
from gpu.webgpu.buffers import Tensor, padded
from gpu.webgpu.kernels import Number
from gpu.webgpu.plan import Recorder


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
    some of them only. `to_bytes` is recorded where the product takes bytes, `norm_parts` where it
    takes many rows in floats."""
    if norm and not norm.is_rms:
        raise ValueError(f"{label}: a product takes RMSNorm alone; record `norm` before it")
    expect_shape(x, (padded(weight.k),), label)
    if batch.byte_rows is not None and weight.dtype in EVEN_ODD and not sampled:
        y = replace(batch.byte_rows, shape=(batch.n_rows * each, row_words(weight.k)))
        even_odd = EVEN_ODD[weight.dtype]
        label = f"{label}.bytes"
        to_bytes(rec, batch, label, x, weight.k, y, norm=norm, even_odd=even_odd, each=each)
        return Operand({"x": y}, {}, lib_of_bytes(weight.dtype))
    lib = {"weight": f"weight_{weight.dtype}"}
    if norm is None:
        return Operand({"x": x, "gain": batch.unread}, {}, lib)
    if batch.norm_parts and batch.n_rows >= MANY_ROWS and each == 1 and not sampled:
        rows = replace(batch.norm_parts.rows, shape=(batch.n_rows, padded(weight.k)))
        parts = NormParts(rows, batch.norm_parts.scales)
        norm_parts(rec, batch, f"{label}.norm", x, weight.k, norm, parts)
        return Operand({"x": parts.rows, "gain": parts.scales}, {"SCALED": True}, lib)
    return Operand({"x": x, "gain": norm.gain}, {"EPS": norm.eps, "NORM": True}, lib)


def lib_of_bytes(dtype: str) -> dict[str, str]:
    """Which files a product of bytes with weights stored as `dtype` is made of."""
    return {
        "product": "product_bytes",
        "weight": f"weight_{dtype}",
        "weight_bytes": f"weight_bytes_{dtype}",
    }
