"""Mistral (Jiang et al. 2023): Llama with a sliding window of attention in every layer. Keys before
it stay in the prefix cache until their memory is needed. Later Mistrals have no window."""

from __future__ import annotations

from gpu.models.llama import Llama


class Mistral(Llama):
    """Llama with a sliding window in every layer (`config.sliding_windows`)."""
