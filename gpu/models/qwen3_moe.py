"""Qwen 3 MoE (Qwen Team 2025): Qwen 3 with 128 small experts, eight for each token, and without the
shared expert of Qwen 2 MoE. Some layers may be dense: one MLP for every token."""

from __future__ import annotations

from gpu.models.moe import MoeLlama
from gpu.models.qwen3 import Qwen3


class Qwen3Moe(MoeLlama, Qwen3):
    """Nine dispatches a layer, ten where rows are grouped: the four of Qwen 3's attention and those
    of a mixture."""
