"""Qwen 3 (Qwen Team 2025), the dense ones: Llama with a norm of each query and key head. The biases
of Qwen 2 are gone."""

from __future__ import annotations

from gpu.models.head_norms import HeadNorms


class Qwen3(HeadNorms):
    """Six dispatches a layer: those of Llama and `place_heads`."""
