"""What architectures differ in, beside their sizes."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpu.config.experts import Experts
from gpu.config.rope import RopeConfig

ACTIVATIONS = ("silu", "gelu_tanh", "gelu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What sets a model apart from the first Llama, whose values are the defaults.

    attention_bias   biases on the projections to queries, keys and values; `out_bias` on that of
                     what attention gives; `mlp_bias` on those of the MLP
    activation       of the MLP, an entry of `ACTIVATIONS`
    rope             rotary positions; local_rope: of the layers that have a window, where these
                     turn otherwise
    rotary_dim       numbers of a head that are turned, from its beginning; None: all of them
    still_layers     layers whose queries and keys are not turned (NoPE)
    windows          of each layer how many keys a row sees, its own and those right before it;
                     None: all before it. (): no layer has a window
    experts          what the MLPs of layers are made of; None: each is one MLP
    parallel         attention and MLP of a layer both read what was before the layer
    score_scale      what q · k is multiplied by; None: 1 / √head_dim
    score_cap        scores become cap · tanh(score / cap), logit_cap: logits; None: they do not
    embedding_scale, residual_scale, logit_scale
                     what embeddings, updates of the residual stream and logits are multiplied by
    """

    attention_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    activation: str = "silu"
    rope: RopeConfig = field(default_factory=RopeConfig)
    local_rope: RopeConfig | None = None
    rotary_dim: int | None = None
    still_layers: tuple[int, ...] = ()
    windows: tuple[int | None, ...] = ()
    experts: Experts | None = None
    parallel: bool = False
    score_scale: float | None = None
    score_cap: float | None = None
    logit_cap: float | None = None
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0

    def window_of(self, layer: int) -> int | None:
        """How many keys a row sees in this layer; None: all."""
        return self.windows[layer] if self.windows else None

    def rope_of(self, layer: int) -> RopeConfig | None:
        """What turns queries and keys of this layer; None: nothing."""
        if layer in self.still_layers or self.rotary_dim == 0:
            return None
        has_window = self.window_of(layer) is not None
        return self.local_rope if has_window and self.local_rope else self.rope

    def experts_of(self, layer: int) -> Experts | None:
        """What the MLP of this layer is made of; None: it is one MLP."""
        return None if self.experts and layer in self.experts.dense_layers else self.experts
