"""Granite 3 (Granite Team 2024): Llama with four multipliers in the manner of maximal update
parametrisation (Yang et al. 2022): on embeddings, on scores instead of 1 / √d, on the updates of
the residual stream, on logits."""

from __future__ import annotations

from gpu.models.llama import Llama


class Granite(Llama):
    """`config.embedding_scale`, `attn_scale`, `residual_scale` and `logit_scale`."""
