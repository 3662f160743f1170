"""ModernBERT (Warner et al. 2024): pre-norm layers of bidirectional attention and a gated GELU MLP,
with LayerNorm without biases and rotary positions.

    embed      vector of the token, then LayerNorm
    norm       LayerNorm; the first layer has none here
    qkv        projections to queries, keys, values, RoPE; keys and values into the cache
    attention  softmax(q · kᵀ / √d) · v over the text, or what is near on both sides
    out        projection, added to the residual stream
    norm       LayerNorm
    gate_up    projections, gelu(gate) · up
    down       projection, added to the residual stream
    norm       LayerNorm after the last layer

There is no output head: the result is the last state of every token.
"""

from __future__ import annotations

from gpu.models.encoder import EncoderModel
from gpu.models.forward_pass import Pass
from gpu.models.layer import Layer
from gpu.webgpu.buffers import Tensor


class ModernBert(EncoderModel):
    """The forward pass. `x` is the residual stream, (rows, hidden_size)."""

    def forward(self, run: Pass) -> Tensor:
        x = self.embed(run)
        for i, layer in enumerate(self.layers):
            x = self.attention(run, i, layer, x)
            x = self.mlp(run, i, layer, x)
        assert self.final_norm is not None
        return run.norm("final_norm", self.final_norm, x)

    def attention(self, run: Pass, i: int, layer: Layer, x: Tensor) -> Tensor:
        """x + out(heads of [norm](x))."""
        read = x
        if layer.pre_attention is not None:
            read = run.norm(f"{self.config.layer_name(i)}.attn.norm", layer.pre_attention, x)
        return run.add_residual(i, "attention", x, self.heads(run, i, read), layer.out)

    def mlp(self, run: Pass, i: int, layer: Layer, x: Tensor) -> Tensor:
        """x + down(gelu(gate(y)) · up(y)), y = norm(x)."""
        assert layer.pre_mlp is not None
        normed = run.norm(f"{self.config.layer_name(i)}.mlp.norm", layer.pre_mlp, x)
        hidden = run.ffn_hidden(layer.mlp.up, normed, gated=True)
        return run.add_residual(i, "mlp", x, hidden, layer.mlp.down)
