"""The operations that change a pass while it runs: only plans that are reached into have them."""

from __future__ import annotations

from gpu.config import ModelConfig
from gpu.ops.batch import Batch, expect_shape, groups
from gpu.webgpu.buffers import Tensor, padded
from gpu.webgpu.plan import Recorder

WORKGROUP = 64
PARTS = ("attention", "mlp")
"""Of a layer, each of which adds to the residual stream."""


def scale_heads(
    rec: Recorder, batch: Batch, label: str, config: ModelConfig, factors: Tensor, x: Tensor
) -> None:
    """x (rows, n_heads · head_dim) ·= factors (n_slots, n_heads) of each row's slot, in place."""
    expect_shape(x, (padded(config.n_heads * config.head_dim),), label)
    expect_shape(factors, (config.n_heads,), label)
    head_vec4s = config.head_dim // 4
    rec.dispatch(
        label,
        "scale_heads",
        {"step": batch.step, "factors": factors, "x": x},
        (groups(config.n_heads * head_vec4s, WORKGROUP), batch.n_rows, 1),
        {"N_HEADS": config.n_heads, "HEAD_VEC4S": head_vec4s, **_size(x)},
    )


def scale_update(
    rec: Recorder,
    batch: Batch,
    label: str,
    part: str,
    before: Tensor,
    update: Tensor,
    factors: Tensor,
    after: Tensor,
) -> None:
    """after = before + update · factors (n_slots, len(PARTS)) of each row's slot and this `part`;
    the others (rows, width)."""
    expect_shape(factors, (len(PARTS),), label)
    for x in (before, update):
        expect_shape(x, (after.shape[-1],), label)
    rec.dispatch(
        label,
        "scale_update",
        {
            "step": batch.step,
            "before": before,
            "update": update,
            "factors": factors,
            "after": after,
        },
        (groups(after.shape[-1] // 4, WORKGROUP), batch.n_rows, 1),
        {"N_PARTS": len(PARTS), "PART": PARTS.index(part), **_size(after)},
    )


def steer(
    rec: Recorder, batch: Batch, label: str, vectors: Tensor, keeps: Tensor, x: Tensor
) -> None:
    """x (rows, width) += vectors (n_slots, width) of each row's slot, in place; where `keeps`
    (n_slots, 1) of the slot is 0, x becomes the vector."""
    expect_shape(vectors, (x.shape[-1],), label)
    expect_shape(keeps, (1,), label)
    rec.dispatch(
        label,
        "steer",
        {"step": batch.step, "vectors": vectors, "keeps": keeps, "x": x},
        (groups(x.shape[-1] // 4, WORKGROUP), batch.n_rows, 1),
        _size(x),
    )


def _size(x: Tensor) -> dict[str, int]:
    return {"STRIDE": x.shape[-1], "WORKGROUP": WORKGROUP}
