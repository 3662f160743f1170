"""T5 (Raffel et al. 2020): an encoder and a decoder of pre-norm layers, RMSNorm throughout, no
biases, and no positions but a bias on scores by the distance of the key.

    qkv        RMSNorm, projections to queries, keys, values; keys and values into the cache
    attention  softmax(q · kᵀ + bias by distance) · v: over the whole text in the encoder, up to the
               row's own token in the decoder
    out        projection, added to the residual stream
    cross.q    RMSNorm, projection to queries                                           decoder only
    cross      softmax(q · kᵀ) · v over the keys and values of the encoder's states     decoder only
    cross.out  projection, added to the residual stream                                 decoder only
    up         RMSNorm, projection, relu; T5 1.1: gelu(gate) · up
    down       projection, added to the residual stream

The keys and values of cross-attention are computed once for a text, after the encoder's final norm.
"""

from __future__ import annotations

from gpu.checkpoint.matrix import Matrix
from gpu.checkpoint.tensor_names import decoder_map_of
from gpu.checkpoint.weights import WeightLoader
from gpu.config import ModelConfig
from gpu.models.encoder import EncoderModel
from gpu.models.forward_pass import Pass
from gpu.models.layer import CrossAttention, Layer
from gpu.models.loading import LayerLoader
from gpu.webgpu.buffers import Tensor

RESIDUAL = "resid_cross"
"""Scratch of the decoder: the residual stream between cross-attention and MLP."""


class T5Encoder(EncoderModel):
    """The forward pass of the encoder. `x` is the residual stream, (rows, hidden_size)."""

    def forward(self, run: Pass) -> Tensor:
        x = self.embed(run)
        for i, layer in enumerate(self.layers):
            heads = self.heads(run, i, x, norm=layer.pre_attention)
            x = run.add_residual(i, "attention", x, heads, layer.out)
            x = mlp(run, i, layer, x)
        assert self.final_norm is not None
        return run.norm("final_norm", self.final_norm, x)


class T5Decoder:
    """Weights of the decoder on the device, and its forward pass. `embedding`: that of the encoder,
    which both share."""

    def __init__(self, config: ModelConfig, load: WeightLoader, embedding: Matrix) -> None:
        layers = LayerLoader(config, load, decoder_map_of(config))
        self.config, self.embedding = config, embedding
        self.layers = [layers.layer(i) for i in range(config.n_layers)]
        self.crossings = [layers.cross_attention(i) for i in range(config.n_layers)]
        self.position_biases = layers.position_biases(causal=True)
        self.norm = layers.final_norm()
        self.head = embedding if config.tie_embeddings else layers.head()

    def cross_kv(self, run: Pass, states: Tensor) -> None:
        """Record the keys and values of `states`, the encoder's last ones, of every layer."""
        for i, crossing in enumerate(self.crossings):
            run.kv(i, crossing.kv, states)

    def forward(self, run: Pass, cross: Pass) -> Tensor:
        """Record the pass up to the last layer. `cross`: the same rows over the cache of
        `cross_kv`, each at the position of the last state."""
        x = run.embed(self.embedding)
        for i, (layer, crossing) in enumerate(zip(self.layers, self.crossings, strict=True)):
            q = run.qkv(i, layer.qkv, x, norm=layer.pre_attention, rope=None)
            heads = run.attention(i, q, self.position_biases[i])
            x = run.add_residual(i, "attention", x, heads, layer.out)
            x = self.cross_attention(cross, i, crossing, x)
            x = mlp(run, i, layer, x)
        return x

    def cross_attention(self, run: Pass, i: int, crossing: CrossAttention, x: Tensor) -> Tensor:
        """x + out(heads over the encoder's states)."""
        q = run.linear(crossing.q, x, run.work.q, norm=crossing.norm)
        heads = run.attention(i, q, name="cross")
        return run.linear(crossing.out, heads, run.work.scratch[RESIDUAL], residual=x)

    def logits(self, run: Pass, x: Tensor, out: Tensor) -> Tensor:
        """scale · head(norm(x)) of the sampled rows: out (n_samples, vocab_size)."""
        return run.logits(self.head, x, out, norm=self.norm)


def mlp(run: Pass, i: int, layer: Layer, x: Tensor) -> Tensor:
    """x + down(act(up(norm(x)))), or with a gate x + down(act(gate) · up)."""
    gated = bool(run.config.gated_mlp)
    hidden = run.ffn_hidden(layer.mlp.up, x, norm=layer.pre_mlp, gated=gated)
    return run.add_residual(i, "mlp", x, hidden, layer.mlp.down)
