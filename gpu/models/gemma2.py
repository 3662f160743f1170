"""Gemma 2 (Gemma Team 2024): Llama with norms before and after each part of a layer, a GeGLU MLP,
embeddings times √hidden, soft caps on scores and logits, and a sliding window in every second
layer. Checkpoints hold what the gains of norms differ from 1 by.

    x = x + norm(attention(norm(x)))
    x = x + norm(mlp(norm(x)))
"""

from __future__ import annotations

from gpu.checkpoint.weights import WeightLoader
from gpu.models.llama import Llama, Norms


class Gemma2(Llama):
    """Seven dispatches a layer: those of Llama and two norms. Scales, caps and windows are traits
    of `config`."""

    has_norms_after = True
    gain_is_less_one = True

    def load_norms(self, load: WeightLoader, name: str, prefix: str) -> Norms:
        return Norms(
            before_attention=self.load_norm(load, f"{name}.attn.norm", f"{prefix}.input_layernorm"),
            after_attention=self.load_norm(
                load, f"{name}.attn.norm_after", f"{prefix}.post_attention_layernorm"
            ),
            before_mlp=self.load_norm(
                load, f"{name}.mlp.norm", f"{prefix}.pre_feedforward_layernorm"
            ),
            after_mlp=self.load_norm(
                load, f"{name}.mlp.norm_after", f"{prefix}.post_feedforward_layernorm"
            ),
        )
