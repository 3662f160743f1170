"""Statistics of the residual stream; only plans with statistics (`capture`) record them."""

from __future__ import annotations

from gpu.config import ModelConfig
from gpu.ops.batch import Batch, expect_shape
from gpu.ops.cost import Cost, StepSize, constants_of, cost_of_kernel
from gpu.webgpu.buffers import Tensor, padded
from gpu.webgpu.plan import Dispatch, Recorder

STATS_FIELDS = ("residual", "attention", "mlp", "attention_cosine", "mlp_cosine")
"""‖residual after the layer‖, ‖attention update‖, ‖MLP update‖, and the cosine of each update to
the stream it is added to."""
STATS_PER_LAYER = len(STATS_FIELDS)
STATS_FLOPS = 16
"""Per number and layer: two differences, four sums of squares."""


def n_stats(config: ModelConfig) -> int:
    """Return the statistics per row: the norm of the embedding and those of every layer."""
    return 1 + STATS_PER_LAYER * config.n_layers


def layer_stats(
    rec: Recorder,
    batch: Batch,
    label: str,
    config: ModelConfig,
    resid_pre: Tensor,
    resid_mid: Tensor,
    stats: Tensor,
) -> None:
    """stats (rows, 1 + 5 · n_layers) = norms and cosines of the residual stream and its updates."""
    expect_shape(stats, (n_stats(config),), label)
    rec.dispatch(
        label,
        "layer_stats",
        {"step": batch.step, "resid_pre": resid_pre, "resid_mid": resid_mid, "stats": stats},
        (config.n_layers, batch.n_rows, 1),
        {
            "X_STRIDE": padded(config.hidden_size),
            "STATE_STRIDE": resid_pre.shape[-1],
            "N_LAYERS": config.n_layers,
            "LANES": rec.device.policy.row_lanes,
        },
    )


@cost_of_kernel("layer_stats")
def layer_stats_cost(dispatch: Dispatch, size: StepSize) -> Cost:
    """Operations: 16 per number and layer. Bytes: both captured residual streams, stats."""
    c = constants_of(dispatch)
    n_layers, width = c["N_LAYERS"], c["X_STRIDE"]
    return Cost(
        size.n_rows * n_layers * STATS_FLOPS * width,
        size.n_rows * 4 * ((2 * n_layers + 1) * width + 1 + STATS_PER_LAYER * n_layers),
    )
