"""OLMoE (Muennighoff et al. 2024): 64 small experts, eight for each token, gated by a softmax over
all of them; norms of queries and keys, over all heads together. Norms come before attention and
MLP, as in Llama, not after them, as in OLMo 2."""

from __future__ import annotations

from gpu.models.moe import MoeLlama
from gpu.models.qk_norm import QKNorm


class Olmoe(MoeLlama, QKNorm):
    """Nine dispatches a layer, ten where rows are grouped: the three of Llama's attention,
    `qk_norm_rope`, and those of a mixture."""
