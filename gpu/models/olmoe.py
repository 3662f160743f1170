"""OLMoE (Muennighoff et al. 2024): 64 small experts, eight for each token, weighed by a softmax
over all of them; norms of queries and keys, all heads together. Norms come before attention and
MLP, as in Llama, not after them, as in OLMo 2."""

from __future__ import annotations

from gpu.models.head_norms import HeadNorms
from gpu.models.mixture import MixtureLlama


class Olmoe(MixtureLlama, HeadNorms):
    """Nine dispatches a layer, ten where rows are grouped: the three of Llama's attention,
    `place_heads`, and those of a mixture."""

    heads_together = True
