"""Hyperparameters of a model, without its sizes."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpu.architectures.common.moe import MoeConfig
from gpu.architectures.common.rope import RopeConfig

ACTIVATIONS = ("silu", "gelu_tanh", "gelu", "relu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hyperparameters:
    """Hyperparameters that differ between architectures. The defaults are those of Llama 1.

    attention_bias   biases on the projections to queries, keys and values; out_bias: on the output
                     projection of attention; mlp_bias: on those of the MLP
    layer_norm       norms without biases are LayerNorms; False: RMSNorms. Those with biases always
                     are LayerNorms
    activation       of the MLP, an entry of `ACTIVATIONS`
    gated_mlp        whether the MLP has a gate; None: the modules of the architecture say so
    rope             rotary positions; local_rope: those of layers with a sliding window, None: the
                     same
    rotary_dim       dimensions of a head that are rotated, the first ones; None: all
    first_position   position of the first token in the table of learned positions
    relative_attention_num_buckets
                     of distances whose learned biases are added to attention scores; 0: none are
    relative_attention_max_distance
                     distance from which on all keys have the bias of the last bucket
    nope_layers      layers without positions (NoPE)
    sliding_windows  for each layer the number of keys a row attends to, its own and those right
                     before it; None: all before it. (): no layer has a window. In encoders a row
                     attends to as many keys after it
    experts          mixture of experts; None: every layer has one MLP
    parallel         attention and MLP of a layer both read the residual stream before the layer
    attn_scale       factor of q · k; None: 1 / √head_dim
    attn_logit_softcap   c: scores become c · tanh(score / c); None: no cap
    final_logit_softcap  the same for logits
    embedding_scale, residual_scale, logit_scale
                     factors of embeddings, updates of the residual stream and logits
    """

    attention_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    layer_norm: bool = False
    activation: str = "silu"
    gated_mlp: bool | None = None
    rope: RopeConfig = field(default_factory=RopeConfig)
    local_rope: RopeConfig | None = None
    rotary_dim: int | None = None
    first_position: int = 0
    relative_attention_num_buckets: int = 0
    relative_attention_max_distance: int = 128
    nope_layers: tuple[int, ...] = ()
    sliding_windows: tuple[int | None, ...] = ()
    experts: MoeConfig | None = None
    parallel_residual: bool = False
    attn_scale: float | None = None
    attn_logit_softcap: float | None = None
    final_logit_softcap: float | None = None
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0

    def sliding_window_of(self, layer: int) -> int | None:
        """Return the sliding window of a layer in keys; None: it has none."""
        return self.sliding_windows[layer] if self.sliding_windows else None

    def rope_of(self, layer: int) -> RopeConfig | None:
        """Return the rotary positions of a layer; None: it has none."""
        if layer in self.nope_layers or self.rotary_dim == 0:
            return None
        has_window = self.sliding_window_of(layer) is not None
        return self.local_rope if has_window and self.local_rope else self.rope

    def moe_of(self, layer: int) -> MoeConfig | None:
        """Return the mixture of experts of a layer; None: it has one MLP."""
        return None if self.experts and layer in self.experts.dense_layers else self.experts
