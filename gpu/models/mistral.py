"""Mistral (Jiang et al. 2023): Llama with a sliding window of attention in every layer. Older keys
stay in the cache, because rows that are recomputed may need them. Later Mistrals have no window."""

from __future__ import annotations

from gpu.models.llama import Llama


class Mistral(Llama):
    """`config.sliding_windows` in every layer."""
