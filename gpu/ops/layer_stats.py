"""The operation that only captured plans have."""

from __future__ import annotations

from gpu.config import ModelConfig
from gpu.ops.batch import Batch, expect_shape
from gpu.webgpu.buffers import Tensor, padded
from gpu.webgpu.plan import Recorder

STATS_PER_LAYER = 5
"""‖residual after it‖, ‖attention update‖, ‖MLP update‖, and the cosines of the two updates to the
stream that each is added to."""


def n_stats(config: ModelConfig) -> int:
    """Numbers that `layer_stats` leaves of a row: the embedding's norm and those of every layer."""
    return 1 + STATS_PER_LAYER * config.n_layers


def layer_stats(
    rec: Recorder,
    batch: Batch,
    label: str,
    config: ModelConfig,
    states: Tensor,
    middles: Tensor,
    stats: Tensor,
) -> None:
    """Norms of the residual stream and its updates, and cosines: stats (rows, 1 + 5 · n_layers)."""
    expect_shape(stats, (n_stats(config),), label)
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
