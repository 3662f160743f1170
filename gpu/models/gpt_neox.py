"""GPT-NeoX (Black et al. 2022) and Pythia (Biderman et al. 2023): GPT-2 with rotary positions for a
quarter of each head in place of learned ones, an output matrix of its own, and attention and MLP
in parallel:

    x = x + attention(norm(x)) + mlp(norm(x))
"""

from __future__ import annotations

from gpu.models.forward_pass import Pass
from gpu.models.gpt2 import Gpt2
from gpu.webgpu.buffers import Tensor


class GptNeoX(Gpt2):
    """If `config.parallel_residual`, attention and the MLP of a layer both read its input."""

    def forward(self, run: Pass) -> Tensor:
        x = self.embed(run)
        for i, layer in enumerate(self.layers):
            x = run.resid_pre(i, x)
            with_attention = self.attention(run, i, layer, x)
            mlp_input = x if self.config.parallel_residual else with_attention
            hidden = self.mlp_hidden(run, i, layer, mlp_input)
            x = run.add_residual(i, "mlp", with_attention, hidden, layer.mlp.down)
        return x
