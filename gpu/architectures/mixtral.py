"""Mixtral (Jiang et al. 2024): Mistral whose MLPs are mixtures of experts, two of eight for each
token. The gates are a softmax over the logits of the two chosen. Its GGUF files name themselves
llama; they have experts."""

from __future__ import annotations

from dataclasses import replace

from gpu.architectures import mistral
from gpu.architectures.common import llama_gguf as gguf
from gpu.architectures.common.architecture import Architecture
from gpu.architectures.common.gguf_format import GgufFormat, Values
from gpu.architectures.common.gguf_readers import read_experts, read_rope
from gpu.architectures.common.hyperparameters import Hyperparameters
from gpu.architectures.common.llama_tensors import (
    EXPERT_DOWN,
    EXPERT_GATE_UP,
    LLAMA_ATTENTION,
    PRE_EXPERTS_NORM,
    ROUTER,
    STACKED_EXPERTS,
    llama_tensors,
)
from gpu.architectures.common.moe import read_moe
from gpu.architectures.common.readers import Sizes, read_full_rope
from gpu.files.json_object import JsonObject
from gpu.gguf.metadata import Metadata


def read_config(config: JsonObject, sizes: Sizes) -> Hyperparameters:
    experts = read_moe(
        config, n=8, experts_per_token=2, size_key="intermediate_size", norm_topk_prob=True
    )
    rope = read_full_rope(config, sizes, 1e6)
    return replace(mistral.read_config(config, sizes, None), rope=rope, experts=experts)


def read_gguf(meta: Metadata) -> Values:
    return {**read_rope(meta), **read_experts(meta, norm_topk_prob=True)}


EXPERTS = {
    "block_sparse_moe.gate": ROUTER,
    "block_sparse_moe.experts.*.w1": EXPERT_GATE_UP,
    "block_sparse_moe.experts.*.w3": EXPERT_GATE_UP,
    "block_sparse_moe.experts.*.w2": EXPERT_DOWN,
    "mlp.gate": ROUTER,
    **STACKED_EXPERTS,
}
"""Newer transformers names the mixture mlp, as in other architectures."""

ARCHITECTURE = Architecture(
    model_type="mixtral",
    read_config=read_config,
    tensors=llama_tensors({}, {**LLAMA_ATTENTION, **PRE_EXPERTS_NORM, **EXPERTS}),
    gguf=GgufFormat(
        name="llama",
        has_experts=True,
        read=read_gguf,
        outside=gguf.OUTSIDE,
        layer={
            **gguf.LLAMA_ATTENTION,
            **gguf.PRE_MLP_NORM,
            "ffn_gate_inp": "block_sparse_moe.gate",
            "ffn_gate_exps": "block_sparse_moe.experts.*.w1",
            "ffn_up_exps": "block_sparse_moe.experts.*.w3",
            "ffn_down_exps": "block_sparse_moe.experts.*.w2",
        },
        qk_permuted=True,
    ),
    torch=True,
    tiny_config={
        "hidden_size": 48,
        "num_attention_heads": 4,
        "intermediate_size": 40,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    norm_eps=1e-5,
    n_kv_heads=8,
)
