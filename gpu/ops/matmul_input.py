"""Input rows of a matmul: float32 with the norm folded in, float32 normalised before (many rows),
or int8."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpu.checkpoint.matrix import Matrix
from gpu.ops.batch import Batch, RmsNormSplit, expect_shape
from gpu.ops.norms import Norm
from gpu.ops.quantize_activations import EVEN_ODD, quantize_activations, quantized_row_words
from gpu.ops.rms_norm_split import MIN_SPLIT_ROWS, rms_norm_split
from gpu.webgpu.buffers import Tensor, padded
from gpu.webgpu.kernels import Number
from gpu.webgpu.plan import Recorder


@dataclass(frozen=True, slots=True)
class MatmulInput:
    """Input rows of a shader that uses shaders/lib/matmul_tile.wgsl.

    tensors, constants  for the dispatch
    lib                 files of shaders/lib in addition to those of the tile
    q8                  rows are int8
    """

    tensors: dict[str, Tensor | None]
    constants: dict[str, Number]
    lib: dict[str, str]
    q8: bool = False

    @property
    def may_share(self) -> bool:
        """Whether a shared tile can take the rows: no norm to fold in."""
        return not self.constants.get("NORM")


def matmul_input(
    rec: Recorder,
    batch: Batch,
    label: str,
    x: Tensor,
    weight: Matrix,
    norm: Norm | None,
    *,
    each: int = 1,
    sampled: bool = False,
) -> MatmulInput:
    """Return the input [norm](x) of a matmul with `weight`, and record what has to run before it:
    `quantize_activations` for int8 rows, `rms_norm_split` for many float32 rows.

    x has `each` rows per row of the step. `sampled`: the matmul has one row per sample.
    """
    if norm and not norm.is_rms:
        raise ValueError(f"{label}: a matmul folds in RMSNorm only; record `norm` before it")
    expect_shape(x, (padded(weight.k),), label)
    if batch.quantized_rows is not None and weight.dtype in EVEN_ODD and not sampled:
        y = replace(
            batch.quantized_rows, shape=(batch.n_rows * each, quantized_row_words(weight.k))
        )
        even_odd = EVEN_ODD[weight.dtype]
        label = f"{label}.quantize"
        quantize_activations(
            rec, batch, label, x, weight.k, y, norm=norm, even_odd=even_odd, each=each
        )
        return MatmulInput({"x": y}, {}, q8_lib(weight.dtype), q8=True)
    lib = {"weight": f"weight_{weight.dtype}"}
    if norm is None:
        return MatmulInput({"x": x, "gain": None}, {}, lib)
    if batch.rms_norm_split and batch.n_rows >= MIN_SPLIT_ROWS and each == 1 and not sampled:
        rows = replace(batch.rms_norm_split.rows, shape=(batch.n_rows, padded(weight.k)))
        parts = RmsNormSplit(rows, batch.rms_norm_split.scales)
        rms_norm_split(rec, batch, f"{label}.norm", x, weight.k, norm, parts)
        return MatmulInput({"x": parts.rows, "gain": parts.scales}, {"PRE_NORMED": True}, lib)
    return MatmulInput({"x": x, "gain": norm.gain}, {"EPS": norm.eps, "NORM": True}, lib)


def q8_lib(dtype: str) -> dict[str, str]:
    """Return the library files that read weights stored as `dtype` for a matmul of int8 rows."""
    return {"weight": f"weight_{dtype}", "weight_int8": f"weight_int8_{dtype}"}
