"""Norms that are dispatches of their own: before sums that no product follows, of heads, and
LayerNorm; and positions that are added to embeddings."""

from __future__ import annotations

from dataclasses import dataclass

from gpu.config import ModelConfig
from gpu.kv.pools import KvPools
from gpu.ops.batch import Batch, expect_shape, groups
from gpu.ops.cache_heads import Destination, cache_heads
from gpu.runner import DeviceInfo
from gpu.webgpu.buffers import Tensor, padded
from gpu.webgpu.plan import Recorder


@dataclass(frozen=True, slots=True)
class Norm:
    """RMSNorm, or LayerNorm when `centred`, with a gain for each number and LayerNorm's biases."""

    gain: Tensor
    eps: float
    centred: bool = False
    bias: Tensor | None = None

    @property
    def is_rms(self) -> bool:
        return not self.centred and self.bias is None


def norm(
    rec: Recorder,
    batch: Batch,
    label: str,
    of: Norm,
    width: int,
    x: Tensor,
    y: Tensor,
    *,
    residual: Tensor | None = None,
    gather: bool = False,
) -> None:
    """y = [residual +] norm(x), rows of `width` numbers. `gather`: one row of y for each sample,
    from its row of x."""
    for tensor in (x, y, *((residual,) if residual else ())):
        expect_shape(tensor, (padded(width),), label)
    rec.dispatch(
        label,
        "norm",
        {
            "step": batch.step,
            "x": x,
            "gain": of.gain,
            "bias": of.bias or batch.unread,
            "residual": residual or batch.unread,
            "y": y,
        },
        (batch.n_samples if gather else batch.n_rows, 1, 1),
        {
            "WIDTH": width,
            "STRIDE": padded(width),
            "EPS": of.eps,
            "LANES": lanes_over_a_row(rec.device.info),
            "CENTRED": of.centred,
            "BIAS": of.bias is not None,
            "RESIDUAL": residual is not None,
            "GATHER": gather,
        },
    )


def place_heads(
    rec: Recorder,
    batch: Batch,
    label: str,
    config: ModelConfig,
    projected: Tensor,
    gains: Tensor,
    rotations: Tensor | None,
    pools: KvPools,
    layer: int,
    q: Tensor,
    *,
    whole: bool = False,
) -> None:
    """Normalise queries and keys, turn them by their rows' positions and write keys and values into
    the cache of `layer`, by a second dispatch where it is quantised. projected (rows, (n_heads +
    2 · n_kv_heads) · head_dim); gains (2 · head_dim,) of a query head and a key head, each
    normalised alone, or, when `whole`, ((n_heads + n_kv_heads) · head_dim,) of all heads,
    normalised together; rotations as in `qkv`."""
    n_heads, d = config.n_heads + 2 * config.n_kv_heads, config.head_dim
    expect_shape(projected, (padded(n_heads * d),), label)
    expect_shape(q, (padded(config.n_heads * d),), label)
    n_gains = config.n_heads + config.n_kv_heads if whole else 2
    expect_shape(gains, (n_gains * d,), label)
    to = Destination.of(batch, config, pools, layer)
    rec.dispatch(
        label,
        "place_heads",
        {
            "step": batch.step,
            "projected": projected,
            "gains": gains,
            "rotations": rotations or batch.unread,
            "q": q,
            "k_pool": to.keys,
            "v_pool": to.values,
        },
        (n_heads, batch.n_rows, 1),
        {
            "PAIRS": d // 2,
            "HALF": turned_dim(config, rotations, label) // 4,
            "N_HEADS": config.n_heads,
            "P_STRIDE": projected.shape[-1],
            "Q_STRIDE": q.shape[-1],
            "EPS": config.rms_norm_eps,
            "WHOLE": whole,
            "LANES": lanes_over_a_row(rec.device.info),
            **to.paging,
        },
        lib={"kv_pair": to.pair},
    )
    cache_heads(rec, batch, f"{label}.cache", config, pools, layer, q)


def turned_dim(config: ModelConfig, rotations: Tensor | None, label: str) -> int:
    """How many numbers of a head rotations (context, rotary_dim / 2, 2) turn."""
    if rotations is None:
        return 0
    expect_shape(rotations, (config.turned_dim // 2, 2), label)
    return config.turned_dim


def add_positions(rec: Recorder, batch: Batch, label: str, table: Tensor, x: Tensor) -> None:
    """x (rows, width) += the row of table (context, width) at each row's position, in place."""
    expect_shape(table, (x.shape[-1],), label)
    workgroup = 64
    rec.dispatch(
        label,
        "add_positions",
        {"step": batch.step, "table": table, "x": x},
        (groups(x.shape[-1] // 4, workgroup), batch.n_rows, 1),
        {"STRIDE": x.shape[-1], "WORKGROUP": workgroup},
    )


def lanes_over_a_row(info: DeviceInfo) -> int:
    """Of a workgroup that has a row to itself."""
    return 8 if info.software else 64
