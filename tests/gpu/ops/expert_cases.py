"""Configurations of mixture-of-experts architectures, with different sizes and options."""

from __future__ import annotations

from tests.gpu.models.model_cases import YARN, Case, sized

CASES = {
    "mixtral": Case(
        "MixtralConfig",
        sized(2, 48, 4, 2, 40) | {"num_local_experts": 8, "num_experts_per_tok": 2},
    ),
    "mixtral_window_odd": Case(
        "MixtralConfig",
        sized(3, 60, 3, 1, 33)
        | {"num_local_experts": 5, "num_experts_per_tok": 3, "sliding_window": 9, "head_dim": 12}
        | {"tie_word_embeddings": True},
    ),
    "qwen2_moe": Case(
        "Qwen2MoeConfig",
        sized(3, 72, 6, 2, 100)
        | {"num_experts": 10, "num_experts_per_tok": 4, "moe_intermediate_size": 20}
        | {"shared_expert_intermediate_size": 52, "mlp_only_layers": [1]},
    ),
    "qwen2_moe_normalised": Case(
        "Qwen2MoeConfig",
        sized(2, 64, 4, 4, 48)
        | {"num_experts": 6, "num_experts_per_tok": 1, "moe_intermediate_size": 96}
        | {"shared_expert_intermediate_size": 31, "norm_topk_prob": True, "qkv_bias": False}
        | {"use_sliding_window": True, "sliding_window": 11, "tie_word_embeddings": True},
    ),
    "qwen3_moe": Case(
        "Qwen3MoeConfig",
        sized(4, 56, 7, 7, 90)
        | {"num_experts": 16, "num_experts_per_tok": 8, "moe_intermediate_size": 24}
        | {"norm_topk_prob": True, "decoder_sparse_step": 2},
    ),
    "qwen3_moe_window_bias": Case(
        "Qwen3MoeConfig",
        sized(2, 64, 4, 2, 33)
        | {"num_experts": 37, "num_experts_per_tok": 5, "moe_intermediate_size": 64}
        | {"attention_bias": True, "head_dim": 20, "rope_parameters": YARN}
        | {"use_sliding_window": True, "sliding_window": 13, "tie_word_embeddings": True},
    ),
    "olmoe": Case(
        "OlmoeConfig",
        sized(2, 60, 5, 1, 44) | {"num_experts": 12, "num_experts_per_tok": 3},
    ),
    "olmoe_normalised_bias": Case(
        "OlmoeConfig",
        sized(2, 96, 4, 4, 50)
        | {"num_experts": 4, "num_experts_per_tok": 4, "norm_topk_prob": True}
        | {"attention_bias": True, "tie_word_embeddings": True},
    ),
}
