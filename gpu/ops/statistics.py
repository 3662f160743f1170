"""The operation that only captured plans have."""

from __future__ import annotations

from gpu.config import ModelConfig
from gpu.ops.batch import Batch, expect_shape
from gpu.webgpu.buffers import Tensor, padded
from gpu.webgpu.plan import Recorder


def layer_stats(
    rec: Recorder,
    batch: Batch,
    label: str,
    config: ModelConfig,
    states: Tensor,
    middles: Tensor,
    stats: Tensor,
) -> None:
    """Norms of the residual stream and its updates: stats (rows, 1 + 3 · n_layers)."""
    expect_shape(stats, (1 + 3 * config.n_layers,), label)
    rec.dispatch(
        label,
        "layer_stats",
        {"step": batch.step, "states": states, "middles": middles, "stats": stats},
        (config.n_layers, batch.n_rows, 1),
        {
            "X_STRIDE": padded(config.hidden_size),
            "STATE_STRIDE": states.shape[-1],
            "N_LAYERS": config.n_layers,
            "LANES": 8 if rec.device.info.software else 64,
        },
    )
