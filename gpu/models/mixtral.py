"""Mixtral (Jiang et al. 2024): Mistral whose MLPs are mixtures of experts, two of eight for each
token. The weights of those chosen are a softmax over their logits alone."""

from __future__ import annotations

from gpu.models.mistral import Mistral
from gpu.models.mixture import MixtureLlama


class Mixtral(MixtureLlama, Mistral):
    """Eight dispatches a layer, nine where rows are grouped: the three of Llama's attention and
    those of a mixture."""

    own_module = "block_sparse_moe"
    modules = ("w1", "w3", "w2")
