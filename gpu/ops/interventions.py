"""Operations that change a running pass; only plans with interventions record them."""

from __future__ import annotations

from gpu.config import ModelConfig
from gpu.ops.batch import Batch, expect_shape, n_workgroups
from gpu.webgpu.buffers import Tensor, padded
from gpu.webgpu.plan import Recorder

WORKGROUP = 64
SUBLAYERS = ("attention", "mlp")
"""Parts of a layer, each of which adds to the residual stream."""


def scale_heads(
    rec: Recorder, batch: Batch, label: str, config: ModelConfig, factors: Tensor, x: Tensor
) -> None:
    """x (rows, n_heads · head_dim) ·= factors (n_slots, n_heads) of the rows' slots, in place."""
    expect_shape(x, (padded(config.n_heads * config.head_dim),), label)
    expect_shape(factors, (config.n_heads,), label)
    head_vec4s = config.head_dim // 4
    rec.dispatch(
        label,
        "scale_heads",
        {"step": batch.step, "factors": factors, "x": x},
        (n_workgroups(config.n_heads * head_vec4s, WORKGROUP), batch.n_rows, 1),
        {"N_HEADS": config.n_heads, "HEAD_VEC4S": head_vec4s, **_size(x)},
    )


def scale_residual(
    rec: Recorder,
    batch: Batch,
    label: str,
    sublayer: str,
    resid_pre: Tensor,
    update: Tensor,
    factors: Tensor,
    resid_post: Tensor,
) -> None:
    """resid_post = resid_pre + factor · update, each (rows, width). factors (n_slots,
    len(SUBLAYERS)) are those of the rows' slots and this `sublayer`."""
    expect_shape(factors, (len(SUBLAYERS),), label)
    for x in (resid_pre, update):
        expect_shape(x, (resid_post.shape[-1],), label)
    rec.dispatch(
        label,
        "scale_residual",
        {
            "step": batch.step,
            "resid_pre": resid_pre,
            "update": update,
            "factors": factors,
            "resid_post": resid_post,
        },
        (n_workgroups(resid_post.shape[-1] // 4, WORKGROUP), batch.n_rows, 1),
        {"N_SUBLAYERS": len(SUBLAYERS), "SUBLAYER": SUBLAYERS.index(sublayer), **_size(resid_post)},
    )


def steer(
    rec: Recorder, batch: Batch, label: str, vectors: Tensor, keeps: Tensor, x: Tensor
) -> None:
    """x (rows, width) += vectors (n_slots, width) of the rows' slots, in place; x = the vector
    where `keeps` (n_slots, 1) is 0."""
    expect_shape(vectors, (x.shape[-1],), label)
    expect_shape(keeps, (1,), label)
    rec.dispatch(
        label,
        "steer",
        {"step": batch.step, "vectors": vectors, "keeps": keeps, "x": x},
        (n_workgroups(x.shape[-1] // 4, WORKGROUP), batch.n_rows, 1),
        _size(x),
    )


def _size(x: Tensor) -> dict[str, int]:
    return {"STRIDE": x.shape[-1], "WORKGROUP": WORKGROUP}
