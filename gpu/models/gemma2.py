"""Gemma 2 (Gemma Team 2024): Llama with norms before and after attention and MLP, a GeGLU MLP,
embeddings times √hidden, soft caps on scores and logits, and a sliding window in every second
layer. Checkpoints hold the gains of norms minus 1.

    x = x + norm(attention(norm(x)))
    x = x + norm(mlp(norm(x)))
"""

from __future__ import annotations

from gpu.models.llama import Llama


class Gemma2(Llama):
    """Seven dispatches a layer: Llama's and two norms."""
