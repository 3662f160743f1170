"""Qwen 2 and 2.5 (Yang et al. 2024): Llama with biases on queries, keys and values alone. The
larger ones can be told to give their later layers a sliding window."""

from __future__ import annotations

from gpu.models.llama import Llama


class Qwen2(Llama):
    """`config.attention_bias` without `config.out_bias`; `config.windows` where it is told."""
