"""Qwen 3 MoE (Qwen Team 2025): Qwen 3 with 128 small experts, eight for each token, and without the
shared expert of Qwen 2 MoE. Some layers may be dense: one MLP for every token."""

from __future__ import annotations

from gpu.architectures.common import llama_gguf as gguf
from gpu.architectures.common.architecture import Architecture
from gpu.architectures.common.gguf_format import GgufFormat, Values
from gpu.architectures.common.gguf_readers import (
    read_expert_width,
    read_experts,
    read_rope_and_attention_bias,
)
from gpu.architectures.common.hyperparameters import Hyperparameters
from gpu.architectures.common.llama_tensors import (
    EXPERTS,
    MLP,
    PRE_EXPERTS_NORM,
    PRE_MLP_NORM,
    QWEN3_ATTENTION,
    llama_tensors,
)
from gpu.architectures.common.moe import read_qwen_moe
from gpu.architectures.common.readers import Sizes, read_full_rope, read_sliding_window
from gpu.files.json_object import JsonObject
from gpu.gguf.metadata import Metadata


def read_config(config: JsonObject, sizes: Sizes) -> Hyperparameters:
    config.choice("hidden_act", ("silu",), "silu")
    bias = config.boolean("attention_bias", False)
    has_window = config.boolean("use_sliding_window", False)
    window = read_sliding_window(config) if has_window else None
    return Hyperparameters(
        attention_bias=bias,
        out_bias=bias,
        rope=read_full_rope(config, sizes),
        sliding_windows=(window,) * sizes.n_layers if window else (),
        experts=read_qwen_moe(config, sizes, n=128, experts_per_token=8, default_size=768),
    )


def read_gguf(meta: Metadata) -> Values:
    return {
        **read_rope_and_attention_bias(meta),
        **read_experts(meta, norm_topk_prob=True),
        "moe_intermediate_size": read_expert_width(meta),
    }


ARCHITECTURE = Architecture(
    model_type="qwen3_moe",
    read_config=read_config,
    tensors=llama_tensors(
        {**QWEN3_ATTENTION, **PRE_MLP_NORM, **MLP},
        {**QWEN3_ATTENTION, **PRE_EXPERTS_NORM, **EXPERTS},
    ),
    gguf=GgufFormat(
        name="qwen3moe",
        read=read_gguf,
        outside=gguf.OUTSIDE,
        layer={
            **gguf.LLAMA_ATTENTION,
            **gguf.QK_NORM,
            **gguf.PRE_MLP_NORM,
            **gguf.EXPERTS,
        },
        biased=gguf.ATTENTION_BIASED,
    ),
    torch=True,
    tiny_config={
        "num_hidden_layers": 4,
        "hidden_size": 56,
        "num_attention_heads": 7,
        "num_key_value_heads": 7,
        "intermediate_size": 90,
        "num_experts": 16,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 24,
        "norm_topk_prob": True,
        "decoder_sparse_step": 2,
        "head_dim": 8,
    },
    norm_eps=1e-6,
    n_kv_heads=4,
)
