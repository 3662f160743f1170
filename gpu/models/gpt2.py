"""GPT-2 (Radford et al. 2019): pre-norm layers of attention and a GELU MLP, with LayerNorm, biases
everywhere, and a learned vector for each position that is added to the embedding.

    norm       LayerNorm
    qkv        projections to queries, keys, values; keys and values into the cache
    attention  softmax(q · kᵀ / √d) · v
    out        projection, added to the residual stream
    norm       LayerNorm
    up         projection, gelu
    down       projection, added to the residual stream
"""

from __future__ import annotations

from gpu.models.decoder import Decoder
from gpu.models.forward_pass import Pass
from gpu.models.layer import Layer
from gpu.webgpu.buffers import Tensor


class Gpt2(Decoder):
    """The forward pass. `x` is the residual stream, (rows, hidden_size)."""

    def forward(self, run: Pass) -> Tensor:
        x = self.embed(run)
        for i, layer in enumerate(self.layers):
            x = run.resid_pre(i, x)
            x = self.attention(run, i, layer, x)
            hidden = self.mlp_hidden(run, i, layer, x)
            x = run.add_residual(i, "mlp", x, hidden, layer.mlp.down)
        return x

    def attention(self, run: Pass, i: int, layer: Layer, x: Tensor) -> Tensor:
        """x + out(heads of norm(x))."""
        assert layer.pre_attention is not None
        normed = run.norm(f"{run.config.layer_name(i)}.attn.norm", layer.pre_attention, x)
        heads = run.attention(i, run.qkv(i, layer.qkv, normed, rope=self.rope(i)))
        return run.add_residual(i, "attention", x, heads, layer.out)

    def mlp_hidden(self, run: Pass, i: int, layer: Layer, x: Tensor) -> Tensor:
        """gelu(up(norm(x)))."""
        assert layer.pre_mlp is not None
        normed = run.norm(f"{run.config.layer_name(i)}.mlp.norm", layer.pre_mlp, x)
        return run.ffn_hidden(layer.mlp.up, normed)

    def logits(self, run: Pass, x: Tensor, out: Tensor) -> Tensor:
        """head(norm(x)) of the sampled rows: out (n_samples, vocab_size)."""
        return run.logits(self.head, x, out, norm=self.norm)
