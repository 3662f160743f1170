"""Qwen 2 and 2.5 (Yang et al. 2024): Llama with biases on queries, keys and values alone. The
larger ones can have a sliding window in their later layers."""

from __future__ import annotations

from gpu.models.llama import Llama


class Qwen2(Llama):
    """`config.attention_bias` without `config.out_bias`; `config.sliding_windows` if switched
    on."""
