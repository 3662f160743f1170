"""Qwen 3 (Qwen Team 2025), the dense ones: Llama with a norm of each query and key head, and
without the biases of Qwen 2."""

from __future__ import annotations

from gpu.models.qk_norm import QKNorm


class Qwen3(QKNorm):
    """Six dispatches a layer: Llama's and `qk_norm_rope`."""
