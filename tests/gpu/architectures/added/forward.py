"""The pass of the made-up architecture:

x = x + norm(attention(x)) + norm(mlp(x))
"""

from __future__ import annotations

from gpu.models.forward_pass import Pass
from gpu.models.llama import Llama
from gpu.webgpu.buffers import Tensor


class ParallelPostNorm(Llama):
    def forward(self, run: Pass) -> Tensor:
        x = self.embed(run)
        for i, layer in enumerate(self.layers):
            x = run.resid_pre(i, x)
            with_attention = self.attention(run, i, layer, x)
            hidden = run.ffn_hidden(layer.mlp.up, x, gated=True)
            x = run.add_residual(
                i, "mlp", with_attention, hidden, layer.mlp.down, norm=layer.post_mlp
            )
        return x
