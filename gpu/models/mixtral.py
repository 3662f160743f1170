"""Mixtral (Jiang et al. 2024): Mistral whose MLPs are mixtures of experts, two of eight for each
token. The gates are a softmax over the logits of the two chosen."""

from __future__ import annotations

from gpu.models.mistral import Mistral
from gpu.models.moe import MoeLlama


class Mixtral(MoeLlama, Mistral):
    """Eight dispatches a layer, nine where rows are grouped: the three of Llama's attention and
    those of a mixture."""
