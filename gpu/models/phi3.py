"""Phi 3, 3.5 and Phi 4 mini (Abdin et al. 2024): Llama whose checkpoints hold queries, keys and
values in one matrix, and gate and up in another. Phi 4 mini turns three quarters of each head; long
contexts stretch each wavelength by a factor of its own (LongRoPE, Ding et al. 2024)."""

from __future__ import annotations

import numpy as np

from gpu.checkpoint.weights import Cut, Source
from gpu.models.llama import Llama


class Phi3(Llama):
    """Only the checkpoint is read otherwise."""

    def attention_sources(self, attn: str) -> tuple[Source, Source, Source]:
        config = self.config
        ends = np.cumsum([config.n_heads, config.n_kv_heads, config.n_kv_heads]) * config.head_dim
        q, k, v = np.split(np.arange(ends[-1]), ends[:-1])
        source, n = f"{attn}.qkv_proj.weight", int(ends[-1])
        return Cut(source, q, n), Cut(source, k, n), Cut(source, v, n)

    def mlp_sources(self, mlp: str) -> tuple[Source, Source]:
        inner = self.config.intermediate_size
        gate, up = np.split(np.arange(2 * inner), 2)
        source = f"{mlp}.gate_up_proj.weight"
        return Cut(source, gate, 2 * inner), Cut(source, up, 2 * inner)
