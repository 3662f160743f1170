"""OLMo 2 (OLMo Team 2024): Llama with norms after attention and MLP in place of those before them,
and norms of queries and keys, over all heads together.

    x = x + norm(attention(x))
    x = x + norm(mlp(x))
"""

from __future__ import annotations

from gpu.models.qk_norm import QKNorm


class Olmo2(QKNorm):
    """Eight dispatches a layer: Llama's, `qk_norm_rope`, and two norms."""
