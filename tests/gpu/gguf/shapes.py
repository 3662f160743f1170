"""Shapes of models that several tests of GGUF files use."""

from __future__ import annotations

from tests.gpu.models import random_llama

BIASES = random_llama.Shape(
    "gguf_bias", 4, 2, 16, 64, 96, 301, attention_bias=True, mlp_bias=True, n_layers=2
)
