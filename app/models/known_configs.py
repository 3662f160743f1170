"""Sizes of well-known models, from their config.json on the hub, to size them without a network.
Sampling and special tokens are left out."""

from __future__ import annotations

import functools
from typing import Any

from gpu import ModelShape


def _config(
    model_type: str, layers: int, hidden: int, heads: tuple[int, int, int], intermediate: int,
    vocab: int, context: int, **more: Any,
) -> dict[str, Any]:  # fmt: skip
    """Return a config.json. `heads`: of queries, of keys, and their size."""
    n_heads, n_kv_heads, head_dim = heads
    return {
        "model_type": model_type,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": n_heads,
        "num_key_value_heads": n_kv_heads,
        "head_dim": head_dim,
        "intermediate_size": intermediate,
        "vocab_size": vocab,
        "max_position_embeddings": context,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        **more,
    }


UNTIED = {"tie_word_embeddings": False}

SMOLLM2_135M = _config("llama", 30, 576, (9, 3, 64), 1536, 49152, 8192)

OFFERED = {
    "HuggingFaceTB/SmolLM2-135M-Instruct": SMOLLM2_135M,
    "HuggingFaceTB/SmolLM2-360M-Instruct":
        _config("llama", 32, 960, (15, 5, 64), 2560, 49152, 8192),
    "Qwen/Qwen2.5-0.5B-Instruct": _config("qwen2", 24, 896, (14, 2, 64), 4864, 151936, 32768),
    "Qwen/Qwen3-0.6B": _config("qwen3", 28, 1024, (16, 8, 128), 3072, 151936, 40960),
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0":
        _config("llama", 22, 2048, (32, 4, 64), 5632, 32000, 2048, **UNTIED),
    "Qwen/Qwen2.5-1.5B-Instruct": _config("qwen2", 28, 1536, (12, 2, 128), 8960, 151936, 32768),
    "HuggingFaceTB/SmolLM2-1.7B-Instruct":
        _config("llama", 24, 2048, (32, 32, 64), 8192, 49152, 8192),
    "HuggingFaceTB/SmolLM3-3B": _config("smollm3", 36, 2048, (16, 4, 128), 11008, 128256, 65536),
}  # fmt: skip
"""Recommended models on the hub, smallest first. All are under Apache-2.0."""

IN_WHEELS = {
    "SmolLM2-135M-Instruct": SMOLLM2_135M,
    "gemma-3-270m": _config(
        "gemma3_text", 18, 640, (4, 1, 256), 2048, 262144, 32768, sliding_window=512
    ),
}
"""Recommended models on the package index."""

LARGER = {
    "meta-llama/Llama-3.1-8B":
        _config("llama", 32, 4096, (32, 8, 128), 14336, 128256, 131072, **UNTIED),
    "Qwen/Qwen3-30B-A3B": _config(
        "qwen3_moe", 48, 2048, (32, 4, 128), 6144, 151936, 40960, moe_intermediate_size=768,
        num_experts=128, num_experts_per_tok=8, norm_topk_prob=True, **UNTIED,
    ),
    "mistralai/Mixtral-8x7B-v0.1": _config(
        "mixtral", 32, 4096, (32, 8, 128), 14336, 32000, 32768, num_local_experts=8,
        num_experts_per_tok=2, **UNTIED,
    ),
    "meta-llama/Llama-3.1-70B":
        _config("llama", 80, 8192, (64, 8, 128), 28672, 128256, 131072, **UNTIED),
}  # fmt: skip
"""Models that few machines can run, to see what they would need."""

CONFIGS = {**IN_WHEELS, **OFFERED, **LARGER}


@functools.cache
def known_shape(name: str) -> ModelShape:
    """Return the shape of one of `CONFIGS`."""
    return ModelShape.of_config(name, CONFIGS[name])
