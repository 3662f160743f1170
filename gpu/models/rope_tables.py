"""Cosines and sines of rotary positions, for shaders/qkv.wgsl and
shaders/qk_norm_rope.wgsl. Their frequencies come from `gpu.architectures.common.rope`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gpu.config import ModelConfig, RopeConfig
from gpu.webgpu.buffers import Memory, Tensor


def rope_cos_sin(
    config: ModelConfig,
    context: int,
    rope: RopeConfig | None = None,
    n_positions: int | None = None,
    *,
    rotates: bool = True,
) -> npt.NDArray[np.float32]:
    """Return (context, rotary_dim / 2, 2) float32: cosine and sine of position × frequency, times
    the attention factor. Computed in double precision, so that long positions keep their accuracy
    on any GPU.

    rope         one of the configuration's; None: that of layers without a window
    n_positions  only the first of them; None: all of the context
    rotates      False: every angle is 0
    """
    rope = rope or config.rope
    inv_freq = rope.inv_freq(config.rope_dim, context)
    n_positions = context if n_positions is None else n_positions
    angles = np.outer(np.arange(n_positions, dtype=np.float64), inv_freq * rotates)
    table, values = np.empty((*angles.shape, 2), np.float32), np.empty_like(angles)
    for i, function in enumerate((np.cos, np.sin)):
        function(angles, out=values)
        table[..., i] = np.multiply(values, rope.attention_factor, out=values)
    return table


def upload_rope_cos_sin(
    config: ModelConfig, memory: Memory, context: int
) -> dict[RopeConfig, Tensor]:
    """Return the tables of all layers on the device, one for each kind of RoPE."""
    ropes = dict.fromkeys(config.rope_of(i) for i in range(config.n_layers))
    tables: dict[RopeConfig, Tensor] = {}
    for rope in ropes:
        if rope is not None:
            name = "rope_cos_sin" if rope == config.rope else "rope_cos_sin.local"
            table = rope_cos_sin(config, context, rope)
            tables[rope] = memory.upload(name, table, purpose="work")
    return tables
