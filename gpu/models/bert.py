"""BERT (Devlin et al. 2018): post-norm layers of bidirectional attention and a GELU MLP, with
LayerNorm, biases everywhere, and learned vectors for positions and token types.

    embed      vectors of the token, of its position and of the token type, then LayerNorm
    qkv        projections to queries, keys, values; keys and values into the cache
    attention  softmax(q · kᵀ / √d [+ bias by distance]) · v over all tokens of the text
    out        projection, added to what the layer read; LayerNorm
    up         projection, gelu
    down       projection, added to what the MLP read; LayerNorm

There is no output head: the result is the last state of every token.
"""

from __future__ import annotations

from gpu.models.encoder import EncoderModel
from gpu.models.forward_pass import Pass
from gpu.models.layer import Layer
from gpu.webgpu.buffers import Tensor


class Bert(EncoderModel):
    """The forward pass. `x` is the residual stream, (rows, hidden_size)."""

    def forward(self, run: Pass) -> Tensor:
        x = self.embed(run)
        for i, layer in enumerate(self.layers):
            x = self.attention(run, i, layer, x)
            x = self.mlp(run, i, layer, x)
        return x

    def attention(self, run: Pass, i: int, layer: Layer, x: Tensor) -> Tensor:
        """norm(x + out(heads))."""
        assert layer.post_attention is not None
        label = f"{self.config.layer_name(i)}.attn.norm"
        added = run.add_residual(i, "attention", x, self.heads(run, i, x), layer.out)
        return run.norm(label, layer.post_attention, added)

    def mlp(self, run: Pass, i: int, layer: Layer, x: Tensor) -> Tensor:
        """norm(x + down(gelu(up(x))))."""
        hidden = run.ffn_hidden(layer.mlp.up, x)
        assert layer.post_mlp is not None
        label = f"{self.config.layer_name(i)}.mlp.norm"
        return run.norm(
            label, layer.post_mlp, run.add_residual(i, "mlp", x, hidden, layer.mlp.down)
        )
