"""Configurations of every architecture but Llama: odd sizes where that is allowed, and the features
of the architecture switched on and off. The first of an architecture is in every run of the tests,
the others in the slow ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}


@dataclass(frozen=True)
class Case:
    """A configuration class of transformers and its arguments beside `COMMON`."""

    config: str
    settings: dict[str, Any] = field(default_factory=dict)


def sized(layers: int, hidden: int, heads: int, kv_heads: int, inner: int) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": inner,
    }


COMMON = {
    "vocab_size": 300,
    "max_position_embeddings": 128,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": None,
}

CASES = {
    "qwen2": Case("Qwen2Config", sized(2, 72, 6, 2, 100)),
    "qwen2_window_yarn": Case(
        "Qwen2Config",
        sized(3, 64, 4, 4, 60)
        | {"use_sliding_window": True, "sliding_window": 11, "max_window_layers": 1}
        | {"rope_parameters": YARN, "tie_word_embeddings": True},
    ),
    "mistral": Case("MistralConfig", sized(2, 48, 4, 1, 90) | {"sliding_window": 7}),
    "mistral_plain": Case(
        "MistralConfig", sized(2, 96, 4, 2, 52) | {"sliding_window": None, "head_dim": 20}
    ),
    "smollm3_window": Case(
        "SmolLM3Config",
        sized(3, 48, 6, 3, 50)
        | {"no_rope_layers": [0, 1, 0], "use_sliding_window": True, "sliding_window": 9}
        | {"tie_word_embeddings": False},
    ),
    "smollm3": Case("SmolLM3Config", sized(5, 60, 3, 1, 84)),
    "granite": Case(
        "GraniteConfig",
        sized(3, 56, 7, 7, 68)
        | {"embedding_multiplier": 12.0, "residual_multiplier": 0.22}
        | {"attention_multiplier": 0.2, "logits_scaling": 8.0, "tie_word_embeddings": True},
    ),
    "granite_bias": Case(
        "GraniteConfig",
        sized(2, 64, 4, 2, 33)
        | {"residual_multiplier": 1.5, "attention_bias": True, "mlp_bias": True},
    ),
    "qwen3": Case("Qwen3Config", sized(2, 72, 6, 2, 100) | {"head_dim": 20}),
    "qwen3_window_tied": Case(
        "Qwen3Config",
        sized(3, 48, 4, 4, 64)
        | {"head_dim": 12, "use_sliding_window": True, "sliding_window": 13, "max_window_layers": 2}
        | {"tie_word_embeddings": True, "attention_bias": True},
    ),
    "olmo2": Case("Olmo2Config", sized(3, 60, 5, 1, 76)),
    "olmo2_bias": Case("Olmo2Config", sized(2, 96, 4, 4, 50) | {"attention_bias": True}),
    "phi3_longrope_partial": Case(
        "Phi3Config",
        sized(2, 64, 4, 2, 84)
        | {"original_max_position_embeddings": 32, "tie_word_embeddings": True}
        | {
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 1e4,
                "partial_rotary_factor": 0.75,
                "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 2.0],
                "long_factor": [1.0, 1.5, 3.0, 6.0, 9.0, 20.0],
            }
        },
    ),
    "phi3": Case("Phi3Config", sized(2, 72, 6, 3, 100) | {"sliding_window": 21}),
    "gemma2": Case("Gemma2Config", sized(3, 56, 4, 2, 90) | {"head_dim": 12, "sliding_window": 9}),
    "gemma2_uncapped": Case(
        "Gemma2Config",
        sized(2, 64, 4, 1, 50)
        | {"head_dim": 16, "query_pre_attn_scalar": 20, "final_logit_softcapping": None}
        | {"attn_logit_softcapping": 3.0, "tie_word_embeddings": False},
    ),
    "gemma3": Case(
        "Gemma3TextConfig", sized(7, 48, 4, 1, 60) | {"head_dim": 12, "sliding_window": 17}
    ),
    "gemma3_linear": Case(
        "Gemma3TextConfig",
        sized(2, 64, 2, 2, 70)
        | {"head_dim": 20, "layer_types": ["full_attention", "sliding_attention"]}
        | {"sliding_window": 8, "query_pre_attn_scalar": 24, "tie_word_embeddings": False}
        | {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            }
        },
    ),
    "gpt2": Case("GPT2Config", {"n_layer": 2, "n_embd": 60, "n_head": 5, "n_positions": 128}),
    "gpt2_inner": Case(
        "GPT2Config",
        {"n_layer": 3, "n_embd": 48, "n_head": 3, "n_positions": 64, "n_inner": 100}
        | {"activation_function": "gelu", "tie_word_embeddings": False},
    ),
    "gpt_neox": Case("GPTNeoXConfig", sized(2, 96, 6, 6, 130)),
    "gpt_neox_serial": Case(
        "GPTNeoXConfig",
        sized(3, 48, 3, 3, 70)
        | {"use_parallel_residual": False, "attention_bias": False, "hidden_act": "gelu_new"}
        | {"rope_parameters": {"rope_theta": 2e4, "partial_rotary_factor": 0.5}},
    ),
}
