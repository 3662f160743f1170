"""BERT (Devlin et al. 2018): post-norm layers of bidirectional attention and a GELU MLP, with
LayerNorm, biases everywhere, and learned vectors for positions and token types.

    embed      vectors of the token, of its position and of the token type, then LayerNorm
    qkv        projections to queries, keys, values; keys and values into the cache
    attention  softmax(q · kᵀ / √d) · v over all tokens of the text
    out        projection, added to what the layer read; LayerNorm
    up         projection, gelu
    down       projection, added to what the MLP read; LayerNorm

There is no output head: the result is the last state of every token.
"""

from __future__ import annotations

from gpu.checkpoint.weights import WeightLoader
from gpu.config import ModelConfig
from gpu.models.forward_pass import Pass
from gpu.models.layer import Layer
from gpu.models.loading import LayerLoader
from gpu.webgpu.buffers import Tensor


class Bert:
    """Weights of an encoder on the device, and its forward pass."""

    def __init__(self, config: ModelConfig, load: WeightLoader) -> None:
        layers = LayerLoader(config, load)
        self.config = config
        self.embedding = layers.embedding()
        self.positions = layers.positions()
        self.norm = layers.embedding_norm()
        self.layers = [layers.layer(i) for i in range(config.n_layers)]

    def forward(self, run: Pass, from_end: Pass) -> Tensor:
        """Record the pass of whole texts; return the last states, (rows, hidden_size).

        from_end  the same pass with a step in which every row is at the last position of its text.
                  A row attends up to its position, so there it attends to the whole text
        """
        x = run.norm("embed.norm", self.norm, run.embed(self.embedding, self.positions))
        for i, layer in enumerate(self.layers):
            x = self.attention(run, from_end, i, layer, x)
            x = self.mlp(run, i, layer, x)
        return x

    def attention(self, run: Pass, from_end: Pass, i: int, layer: Layer, x: Tensor) -> Tensor:
        """norm(x + out(heads))."""
        heads = from_end.attention(i, run.qkv(i, layer.qkv, x, rope=None))
        assert layer.post_attention is not None
        label = f"{self.config.layer_name(i)}.attn.norm"
        added = run.add_residual(i, "attention", x, heads, layer.out)
        return run.norm(label, layer.post_attention, added)

    def mlp(self, run: Pass, i: int, layer: Layer, x: Tensor) -> Tensor:
        """norm(x + down(gelu(up(x))))."""
        hidden = run.ffn_hidden(layer.mlp.up, x)
        assert layer.post_mlp is not None
        label = f"{self.config.layer_name(i)}.mlp.norm"
        return run.norm(
            label, layer.post_mlp, run.add_residual(i, "mlp", x, hidden, layer.mlp.down)
        )
