"""GPT-NeoX (Black et al. 2022) and Pythia (Biderman et al. 2023): GPT-2 with rotary positions for a
quarter of each head in place of learned ones, an output matrix of its own, and attention and MLP
side by side:

    x = x + attention(norm(x)) + mlp(norm(x))
"""

from __future__ import annotations

import numpy as np

from gpu.checkpoint.weights import Cut, Source, WeightLoader
from gpu.models.decoder import Decoder
from gpu.models.gpt2 import Gpt2, Modules
from gpu.models.recording import Pass
from gpu.webgpu.buffers import Tensor


class GptNeoX(Gpt2):
    """`config.parallel` says whether MLPs read what was before their layer's attention."""

    embedding_name = "gpt_neox.embed_in.weight"
    norm_name = "gpt_neox.final_layer_norm"
    head_name = "embed_out.weight"
    layers_name = "gpt_neox.layers"
    modules = Modules(
        "input_layernorm",
        "attention.query_key_value",
        "attention.dense",
        "post_attention_layernorm",
        "mlp.dense_h_to_4h",
        "mlp.dense_4h_to_h",
    )

    def embed(self, run: Pass, chosen: Tensor, x: Tensor) -> None:
        Decoder.embed(self, run, chosen, x)

    def load_rest(self, load: WeightLoader, context: int) -> None:
        self.layers = [self.load_layer(load, i) for i in range(self.config.n_layers)]

    def linear(self, source: str, n: int) -> Source:
        return source

    def heads_of(self, source: str, *, transposed: bool) -> tuple[Source, Source, Source]:
        """Query, key and value lie side by side, head by head."""
        n_heads, d = self.config.n_heads, self.config.head_dim
        rows = np.arange(3 * n_heads * d).reshape(n_heads, 3, d)
        q, k, v = (Cut(source, rows[:, part].reshape(-1), rows.size) for part in range(3))
        return q, k, v
