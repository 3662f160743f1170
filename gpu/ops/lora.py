"""The B of LoRA, W·x + B·(A·x): adds what adapters contribute to the output of a matrix. A·x is an
ordinary matmul (`gpu.models.forward_pass`); only plans with adapters record either."""

from __future__ import annotations

from gpu.config import MoeConfig
from gpu.ops.batch import Batch, expect_shape, n_workgroups
from gpu.webgpu.buffers import Tensor
from gpu.webgpu.plan import Recorder

WORKGROUP = 64


def lora_expand(
    rec: Recorder,
    batch: Batch,
    label: str,
    lora_a_out: Tensor,
    b: Tensor,
    first: Tensor,
    ends: Tensor,
    strengths: Tensor,
    bias: Tensor | None,
    y: Tensor,
    *,
    experts: MoeConfig | None = None,
    expert_ids: Tensor | None = None,
) -> None:
    """y (rows, width) = [bias (≥ width,) +] Σ strength · B · lora_a_out over the adapters.

    lora_a_out (rows, n_modules · ranks) holds A · x. strengths (n_slots, n_loras) are those of the
    rows' slots. b (ranks, width), first (width,), ends (n_loras,): see `gpu.lora.stack.LoraStack`.

    With `experts`, y and lora_a_out have a row per assignment, b is (n, ranks, width), one per
    expert, and expert_ids (rows, experts_per_token) chooses.
    """
    experts_per_token = experts.experts_per_token if experts else 0
    width = y.shape[-1]
    for tensor in (b, first):
        expect_shape(tensor, (width,), label)
    if width % 4 or (bias is not None and bias.shape[-1] < width):
        raise ValueError(f"{label}: {bias!r} should have {width} columns, a multiple of 4")
    expect_shape(strengths, ends.shape, label)
    rec.dispatch(
        label,
        "lora_expand",
        {
            "step": batch.step,
            "lora_a_out": lora_a_out,
            "b": b,
            "first": first,
            "ends": ends,
            "strengths": strengths,
            "bias": bias,
            "expert_ids": expert_ids,
            "y": y,
        },
        (n_workgroups(width // 4, WORKGROUP), batch.n_rows * max(1, experts_per_token), 1),
        {
            "N_LORAS": ends.shape[0],
            "LORA_A_STRIDE": lora_a_out.shape[-1],
            "STRIDE": width,
            "BIAS": bias is not None,
            "EXPERTS_PER_TOKEN": experts_per_token,
            "WORKGROUP": WORKGROUP,
        },
    )
