"""Readers of GGUF metadata that several architectures share. Each returns keys of config.json."""

from __future__ import annotations

from gpu.architectures.common.gguf_format import Values
from gpu.gguf.metadata import Metadata
from gpu.gguf.rope import read_rope_parameters

MAX_EXPERTS = 1024
SOFTMAX = 1
"""A value of `expert_gating_func`; 0 means that the file does not say."""
GEMMA_27B_LAYERS = {"gemma2": 46, "gemma3": 62}
"""Gemma's models of 27 billion weights alone scale scores by another number than the size of a
head. Files do not say it; llama.cpp recognises these models by their layers, and so does this."""


def read_rope(meta: Metadata) -> Values:
    return {"rope_parameters": read_rope_parameters(meta)}


def read_rope_and_attention_bias(meta: Metadata) -> Values:
    return {**read_rope(meta), "attention_bias": meta.has_tensor("attn_q.bias")}


def read_query_pre_attn_scalar(meta: Metadata) -> int:
    """Return Gemma's number whose inverse square root scales scores."""
    if meta.get("block_count") == GEMMA_27B_LAYERS[meta.arch]:
        return meta.shape("token_embd.weight", 2)[1] // meta.n_heads
    return meta.head_dim


def read_experts(meta: Metadata, *, norm_topk_prob: bool) -> Values:
    """Read the keys of a mixture. `norm_topk_prob`: whether llama.cpp divides the gates of the
    chosen experts by their sum in this architecture if the file does not say."""
    if meta.integer("expert_gating_func", 0, 2**31, SOFTMAX) not in (0, SOFTMAX):
        raise meta.error("expert_gating_func", f"{SOFTMAX}, a softmax")
    if meta.number("expert_weights_scale", 0.0, 1e6, 1.0) not in (0.0, 1.0):  # 0: not set
        raise meta.error("expert_weights_scale", "1, the only value supported")
    return {
        "num_experts": meta.integer("expert_count", 1, MAX_EXPERTS),
        "num_experts_per_tok": meta.integer("expert_used_count", 1, MAX_EXPERTS),
        "norm_topk_prob": meta.boolean("expert_weights_norm", norm_topk_prob),
    }


def read_expert_width(meta: Metadata) -> int:
    """Return the intermediate size of an expert."""
    return meta.get("expert_feed_forward_length") or meta.shape("blk.0.ffn_gate_exps.weight", 3)[1]
