"""OLMo 2 (OLMo Team 2024): Llama with norms after attention and MLP in place of those before them,
and norms of queries and keys, all heads together.

    x = x + norm(attention(x))
    x = x + norm(mlp(x))
"""

from __future__ import annotations

from gpu.checkpoint.weights import WeightLoader
from gpu.models.head_norms import HeadNorms
from gpu.models.llama import Norms


class Olmo2(HeadNorms):
    """Eight dispatches a layer: those of Llama, `place_heads`, and two norms."""

    heads_together = True
    has_norms_after = True

    def load_norms(self, load: WeightLoader, name: str, prefix: str) -> Norms:
        return Norms(
            after_attention=self.load_norm(
                load, f"{name}.attn.norm", f"{prefix}.post_attention_layernorm"
            ),
            after_mlp=self.load_norm(
                load, f"{name}.mlp.norm", f"{prefix}.post_feedforward_layernorm"
            ),
        )
