"""RMSNorm of queries and keys (Henry et al. 2020; Dehghani et al. 2023), which keeps attention
scores from growing during training. Several architectures have it in Llama's attention:

    qkv           RMSNorm, projections to queries, keys, values
    qk_norm_rope  RMSNorm of queries and keys; rotary positions; keys and values into the cache
"""

from __future__ import annotations

from gpu.models.forward_pass import Pass
from gpu.models.layer import Layer
from gpu.models.llama import Llama
from gpu.webgpu.buffers import Tensor


class QKNorm(Llama):
    """Llama with a norm of queries and keys before they are rotated."""

    def queries(self, run: Pass, i: int, layer: Layer, x: Tensor) -> Tensor:
        assert layer.qk_norm_gains is not None
        norm, rope = layer.pre_attention, self.rope(i)
        return run.qkv_with_norms(i, layer.qkv, layer.qk_norm_gains, x, norm=norm, rope=rope)
