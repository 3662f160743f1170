"""Qwen 1.5 and 2 MoE (Qwen Team 2024): Qwen 2 with many small experts, and a shared one that every
token goes through, weighted by a sigmoid of its own. Some layers may have one MLP instead."""

from __future__ import annotations

from gpu.models.moe import MoeLlama
from gpu.models.qwen2 import Qwen2


class Qwen2Moe(MoeLlama, Qwen2):
    """Ten dispatches a layer, eleven where rows are grouped: the three of Llama's attention, those
    of a mixture, and two of the shared expert."""
