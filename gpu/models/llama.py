"""Llama (Touvron et al. 2023): pre-norm layers of grouped-query attention with rotary positions
and a SwiGLU MLP, RMSNorm throughout.

Running the pass records a plan, five dispatches a layer:

    qkv        RMSNorm, projections to queries, keys, values; rotary positions; keys and values
               into the cache
    attention  softmax(q · kᵀ / √d) · v (long contexts in splits, merged by a sixth)
    out        projection, added to the residual stream
    gate_up    RMSNorm, two projections, silu(gate) · up
    down       projection, added to the residual stream

Most architectures are this pass with other weights and another config (gpu/architectures). Norms
after attention and MLP take a dispatch each. Norms of queries and keys (Henry et al. 2020; Dehghani
et al. 2023), which keep scores from growing during training, take one for both:

    qkv           RMSNorm, projections to queries, keys, values
    qk_norm_rope  RMSNorm of queries and keys; rotary positions; keys and values into the cache

`gpu.models.moe` has the mixture of experts that a layer may have as its MLP, and
`gpu.models.loading` reads the weights.
"""

from __future__ import annotations

from gpu.models.decoder import Decoder
from gpu.models.forward_pass import Pass
from gpu.models.layer import Layer
from gpu.models.moe import mixture
from gpu.webgpu.buffers import Tensor


class Llama(Decoder):
    """The forward pass. `x` is the residual stream, (rows, hidden_size)."""

    def forward(self, run: Pass) -> Tensor:
        x = self.embed(run)
        for i, layer in enumerate(self.layers):
            x = run.resid_pre(i, x)
            x = self.attention(run, i, layer, x)
            x = self.mlp(run, i, layer, x)
        return x

    def attention(self, run: Pass, i: int, layer: Layer, x: Tensor) -> Tensor:
        """x + out(heads), with the norms that the architecture has before and after."""
        heads = run.attention(i, self.queries(run, i, layer, x))
        return run.add_residual(i, "attention", x, heads, layer.out, norm=layer.post_attention)

    def queries(self, run: Pass, i: int, layer: Layer, x: Tensor) -> Tensor:
        """Queries (rows, n_heads · head_dim); keys and values go to the cache."""
        norm, rope = layer.pre_attention, self.rope(i)
        if layer.qk_norm_gains is None:
            return run.qkv(i, layer.qkv, x, norm=norm, rope=rope)
        return run.qkv_with_norms(i, layer.qkv, layer.qk_norm_gains, x, norm=norm, rope=rope)

    def mlp(self, run: Pass, i: int, layer: Layer, x: Tensor) -> Tensor:
        """x + down(silu(gate(x)) · up(x)), with the norms before and after, or x + the weighted
        outputs of experts."""
        if layer.moe is not None:
            return mixture(run, i, layer.moe, x, norm=layer.pre_mlp)
        hidden = run.ffn_hidden(layer.mlp.up, x, norm=layer.pre_mlp, gated=True)
        return run.add_residual(i, "mlp", x, hidden, layer.mlp.down, norm=layer.post_mlp)

    def logits(self, run: Pass, x: Tensor, out: Tensor) -> Tensor:
        """head(norm(x)) of the sampled rows: out (n_samples, vocab_size)."""
        return run.logits(self.head, x, out, norm=self.norm)
