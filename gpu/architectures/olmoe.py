"""OLMoE (Muennighoff et al. 2024): 64 small experts, eight for each token, gated by a softmax over
all of them; norms of queries and keys, over all heads together. Norms come before attention and
MLP, as in Llama, not after them, as in OLMo 2."""

from __future__ import annotations

from dataclasses import replace

from gpu.architectures import llama
from gpu.architectures.common import llama_gguf as gguf
from gpu.architectures.common.architecture import Architecture
from gpu.architectures.common.gguf_format import GgufFormat, Values
from gpu.architectures.common.gguf_readers import read_experts, read_rope_and_attention_bias
from gpu.architectures.common.hyperparameters import Hyperparameters
from gpu.architectures.common.llama_tensors import (
    EXPERTS,
    PRE_EXPERTS_NORM,
    QWEN3_ATTENTION,
    llama_tensors,
)
from gpu.architectures.common.moe import read_moe
from gpu.architectures.common.readers import Sizes
from gpu.files.json_object import JsonObject
from gpu.gguf.metadata import Metadata


def read_config(config: JsonObject, sizes: Sizes) -> Hyperparameters:
    if "clip_qkv" in config:
        raise config.error("clip_qkv", "null, the only value supported")
    experts = read_moe(config, n=64, experts_per_token=8, size_key="intermediate_size")
    return replace(llama.read_config(config, sizes), mlp_bias=False, experts=experts)


def read_gguf(meta: Metadata) -> Values:
    return {**read_rope_and_attention_bias(meta), **read_experts(meta, norm_topk_prob=False)}


ARCHITECTURE = Architecture(
    model_type="olmoe",
    read_config=read_config,
    tensors=llama_tensors(
        {}, {**QWEN3_ATTENTION, **PRE_EXPERTS_NORM, **EXPERTS}, qk_norm_all_heads=True
    ),
    gguf=GgufFormat(
        name="olmoe",
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
        "hidden_size": 60,
        "num_attention_heads": 5,
        "num_key_value_heads": 1,
        "intermediate_size": 44,
        "num_experts": 12,
        "num_experts_per_tok": 3,
    },
    norm_eps=1e-5,
)
