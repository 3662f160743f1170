"""Reading config.json of each architecture: older spellings and defaults, and refusals. What
transformers writes today is read in test_models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers.activations import ACT2FN

from gpu.config import ModelConfig, MoeConfig, RopeConfig
from gpu.errors import ModelError
from gpu.reference.ops import ACTIVATIONS

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 172,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "num_hidden_layers": 6,
    "vocab_size": 512,
    "max_position_embeddings": 2048,
}
GPT2: dict[str, Any] = {
    "n_embd": 64, "n_head": 8, "n_layer": 2, "n_positions": 128, "vocab_size": 512, "n_ctx": 128,
}  # fmt: skip


def read(folder: Path, model_type: str, **changes: Any) -> ModelConfig:
    sizes = GPT2 if model_type == "gpt2" else SIZES
    config = {"model_type": model_type, **sizes, **changes}
    (folder / "config.json").write_text(json.dumps(config))
    return ModelConfig.from_folder(folder)


def test_missing_fields_have_the_defaults_of_their_architecture(tmp_path: Path) -> None:
    assert read(tmp_path, "smollm3").nope_layers == (3,)
    assert read(tmp_path, "smollm3").rope.theta == 2e6
    assert read(tmp_path, "smollm3").tie_embeddings
    assert not read(tmp_path, "qwen2").tie_embeddings
    assert read(tmp_path, "qwen3").head_dim == 128
    assert read(tmp_path, "olmo2").norm_eps == 1e-5
    gemma = read(tmp_path, "gemma2")
    assert (gemma.head_dim, gemma.attn_logit_softcap, gemma.final_logit_softcap) == (
        256,
        50.0,
        30.0,
    )
    assert gemma.sliding_windows == (4096, None) * 3
    assert (gemma.embedding_scale, gemma.attn_scale) == (8.0, 1 / 16)


def test_sliding_windows_are_in_the_layers_that_the_config_names(tmp_path: Path) -> None:
    kinds = ["sliding_attention", "full_attention", *["sliding_attention"] * 4]
    given = {"layer_types": kinds, "sliding_window": 100}
    wanted = (100, None, 100, 100, 100, 100)
    assert read(tmp_path, "gemma3_text", **given).sliding_windows == wanted
    assert read(tmp_path, "qwen3", use_sliding_window=True, **given).sliding_windows == wanted
    assert read(tmp_path, "qwen3", **given).sliding_windows == ()
    late = {"use_sliding_window": True, "max_window_layers": 4, "sliding_window": 9}
    assert read(tmp_path, "qwen2", **late).sliding_windows == (None,) * 4 + (9, 9)
    assert read(tmp_path, "mistral", sliding_window=7).sliding_windows == (7,) * 6
    assert read(tmp_path, "mistral", sliding_window=None).sliding_windows == ()
    assert read(tmp_path, "phi3", sliding_window=2048).sliding_windows == ()
    patterned = read(tmp_path, "gemma3_text", sliding_window_pattern=3, sliding_window=5)
    assert patterned.sliding_windows == (5, 5, None) * 2


def test_gemma3_has_another_rotary_base_in_layers_with_a_window(tmp_path: Path) -> None:
    old = {"rope_theta": 2e6, "rope_local_base_freq": 500.0}
    scaled = {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    config = read(tmp_path, "gemma3_text", **old, **scaled)
    assert (config.rope, config.local_rope) == (RopeConfig(2e6, "linear", 8.0), RopeConfig(500.0))
    assert config.rope_of(0) == config.local_rope
    assert config.rope_of(5) == config.rope
    plain = read(tmp_path, "gemma3_text")
    assert (plain.rope, plain.local_rope) == (RopeConfig(1e6), RopeConfig(1e4))


def test_a_soft_cap_of_null_means_none(tmp_path: Path) -> None:
    nothing = dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping"))
    config = read(tmp_path, "gemma2", **nothing)
    assert (config.attn_logit_softcap, config.final_logit_softcap) == (None, None)


def test_heads_with_partial_rotary(tmp_path: Path) -> None:
    old = read(tmp_path, "gpt_neox", rotary_pct=0.5, rotary_emb_base=5000, head_dim=64)
    assert (old.rotary_dim, old.rope.theta) == (32, 5000.0)
    assert read(tmp_path, "gpt_neox", head_dim=64).rotary_dim == 16
    assert read(tmp_path, "phi3", partial_rotary_factor=0.75, head_dim=128).rotary_dim == 96
    assert read(tmp_path, "gpt2").rope_of(0) is None


@pytest.mark.parametrize("name", ["gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu"])
def test_every_gelu_is_the_function_that_transformers_calls_so(tmp_path: Path, name: str) -> None:
    """That of GPT-NeoX-20B is gelu_fast."""
    x = np.linspace(-6.0, 6.0, 999)
    activation = read(tmp_path, "gpt_neox", head_dim=64, hidden_act=name).activation
    wanted = ACT2FN[name](torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(ACTIVATIONS[activation](x), wanted, rtol=0, atol=1e-7)


def test_gpt2_config_has_its_own_field_names(tmp_path: Path) -> None:
    config = read(tmp_path, "gpt2", layer_norm_epsilon=1e-3)
    assert (config.hidden_size, config.n_layers, config.n_heads) == (64, 2, 8)
    assert (config.intermediate_size, config.context, config.norm_eps) == (256, 128, 1e-3)
    assert config.tie_embeddings
    assert read(tmp_path, "gpt2", n_inner=100).intermediate_size == 100
    assert read(tmp_path, "gpt2", scale_attn_weights=False).attn_scale == 1.0


def test_which_layers_have_experts_and_how_tokens_come_to_them(tmp_path: Path) -> None:
    mixtral = read(tmp_path, "mixtral")
    assert mixtral.experts == MoeConfig(8, 2, 172, norm_topk_prob=True)
    assert mixtral.rope.theta == 1e6
    qwen = read(tmp_path, "qwen2_moe", decoder_sparse_step=2, mlp_only_layers=[3])
    dense = (0, 2, 3, 4)
    assert qwen.experts == MoeConfig(
        60, 4, 1408, False, shared_intermediate_size=5632, dense_layers=dense
    )
    assert [i for i in range(6) if qwen.moe_of(i)] == [1, 5]
    assert qwen.attention_bias
    assert not read(tmp_path, "qwen2_moe", qkv_bias=False).attention_bias
    windows = {"use_sliding_window": True, "max_window_layers": 4, "sliding_window": 9}
    assert read(tmp_path, "qwen2_moe", **windows).sliding_windows == (9, None, 9, None, None, None)
    assert read(tmp_path, "qwen3_moe", **windows).sliding_windows == (9,) * 6
    assert read(tmp_path, "qwen3_moe").experts == MoeConfig(128, 8, 768, norm_topk_prob=False)
    named = {"num_local_experts": 16, "num_experts_per_tok": 2, "norm_topk_prob": True}
    assert read(tmp_path, "qwen3_moe", **named).experts == MoeConfig(
        16, 2, 768, norm_topk_prob=True
    )
    assert read(tmp_path, "olmoe").experts == MoeConfig(64, 8, 172, norm_topk_prob=False)
    assert read(tmp_path, "mistral").experts is None


@pytest.mark.parametrize(
    ("model_type", "changes", "message"),
    [
        ("gemma3", {}, "model_type 'gemma3' is not supported; supported: gemma2, .*smollm3"),
        ("mistral", {"hidden_act": "gelu"}, "hidden_act must be one of silu"),
        ("mistral", {"sliding_window": 0}, "sliding_window must be an integer from 1"),
        ("qwen2", {"partial_rotary_factor": 0.5}, "partial_rotary_factor must be 1"),
        ("smollm3", {"no_rope_layers": [1, 0]}, "no_rope_layers must be a list of 6 entries"),
        ("smollm3", {"no_rope_layers": [2] * 6}, "each 0 or 1"),
        ("granite", {"logits_scaling": 0}, "logits_scaling must be a number from 1e-06"),
        ("phi3", {"rope_scaling": {"type": "linear", "factor": 2}}, "must be default or longrope"),
        (
            "phi3",
            {"partial_rotary_factor": 0.7, "head_dim": 20},
            "multiple of 4 dimensions, not 14",
        ),
        ("gemma2", {"layer_types": ["chunked_attention"] * 6}, "layer_types must be a list"),
        ("gemma2", {"hidden_activation": "relu"}, "hidden_activation must be one of gelu_pytorch"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "must be false"),
        ("mixtral", {"num_experts_per_tok": 9}, "num_experts_per_tok must be an integer from 1 to"),
        ("mixtral", {"num_local_experts": 0}, "num_local_experts must be an integer from 1"),
        ("qwen3_moe", {"mlp_only_layers": [6]}, "mlp_only_layers must be a list of layers from 0"),
        ("qwen2_moe", {"decoder_sparse_step": 0}, "decoder_sparse_step must be an integer from 1"),
        ("olmoe", {"clip_qkv": 8.0}, "clip_qkv must be null"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "must be false"),
        ("gpt2", {"activation_function": "relu"}, "must be one of gelu_new"),
    ],
)
def test_unsupported_configs_are_refused_by_name(
    tmp_path: Path, model_type: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        read(tmp_path, model_type, **changes)
