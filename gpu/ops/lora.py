"""What LoRA adapters add to the outputs of a matrix: only plans with adapters have it."""

from __future__ import annotations

from gpu.config import Experts
from gpu.ops.batch import Batch, expect_shape, groups
from gpu.webgpu.buffers import Tensor
from gpu.webgpu.plan import Recorder

WORKGROUP = 64


def lora_expand(
    rec: Recorder,
    batch: Batch,
    label: str,
    shrunk: Tensor,
    b: Tensor,
    first: Tensor,
    ends: Tensor,
    strengths: Tensor,
    bias: Tensor | None,
    y: Tensor,
    *,
    experts: Experts | None = None,
    chosen: Tensor | None = None,
) -> None:
    """y (rows, width) = [bias (≥ width,) +] Σ strength (n_slots, n_loras) of each row's slot · what
    the adapter makes of shrunk (rows, n_modules · ranks), the products with its A.

    b (ranks, width), first (width,) and ends (n_loras,): see `gpu.lora.stack.Stack`.

    With `experts` y and shrunk have a row for each pair of a row and an expert it was given to,
    `chosen` (rows, per_token), and b is that of each expert (n, ranks, width).
    """
    per_token = experts.per_token if experts else 0
    width = y.shape[-1]
    for tensor in (b, first):
        expect_shape(tensor, (width,), label)
    if width % 4 or (bias is not None and bias.shape[-1] < width):
        raise ValueError(f"{label}: {bias!r} should have {width} columns, whole fours")
    expect_shape(strengths, ends.shape, label)
    rec.dispatch(
        label,
        "lora_expand",
        {
            "step": batch.step,
            "shrunk": shrunk,
            "b": b,
            "first": first,
            "ends": ends,
            "strengths": strengths,
            "bias": bias or batch.unread,
            "chosen": chosen or batch.unread,
            "y": y,
        },
        (groups(width // 4, WORKGROUP), batch.n_rows * max(1, per_token), 1),
        {
            "N_LORAS": ends.shape[0],
            "SHRUNK_STRIDE": shrunk.shape[-1],
            "STRIDE": width,
            "BIAS": bias is not None,
            "PER_TOKEN": per_token,
            "WORKGROUP": WORKGROUP,
        },
    )
