"""Qwen 1.5 and 2 MoE (Qwen Team 2024): Qwen 2 with many small experts, and a shared one that every
token goes through, weighted by a sigmoid of its own. Some layers may have one MLP instead."""

from __future__ import annotations

from gpu.architectures.common import llama_gguf as gguf
from gpu.architectures.common.architecture import Architecture
from gpu.architectures.common.gguf_format import GgufFormat, Values
from gpu.architectures.common.gguf_readers import read_expert_width, read_experts, read_rope
from gpu.architectures.common.hyperparameters import Hyperparameters
from gpu.architectures.common.llama_tensors import (
    EXPERTS,
    LLAMA_ATTENTION,
    LLAMA_LAYER,
    PRE_EXPERTS_NORM,
    ROUTER,
    SHARED_DOWN,
    SHARED_GATE_UP,
    llama_tensors,
)
from gpu.architectures.common.moe import MAX_WIDTH, read_qwen_moe
from gpu.architectures.common.readers import (
    FULL_ATTENTION,
    SLIDING_ATTENTION,
    Sizes,
    read_full_rope,
    read_sliding_windows,
)
from gpu.architectures.common.tensor_map import ModuleRole
from gpu.files.json_object import JsonObject
from gpu.gguf.metadata import Metadata


def read_config(config: JsonObject, sizes: Sizes) -> Hyperparameters:
    """Every second layer below `max_window_layers` has a window, if windows are switched on."""
    config.choice("hidden_act", ("silu",), "silu")
    windows: tuple[int | None, ...] = ()
    if config.boolean("use_sliding_window", False):
        last, n = config.integer("max_window_layers", 0, 1024, 28), sizes.n_layers
        kinds: list[object] = [
            FULL_ATTENTION if i % 2 or i >= last else SLIDING_ATTENTION for i in range(n)
        ]
        windows = read_sliding_windows(config, kinds, sizes)
    shared = config.integer("shared_expert_intermediate_size", 1, MAX_WIDTH, 5632)
    experts = read_qwen_moe(
        config, sizes, n=60, experts_per_token=4, default_size=1408, shared_intermediate_size=shared
    )
    return Hyperparameters(
        attention_bias=config.boolean("qkv_bias", True),
        rope=read_full_rope(config, sizes),
        sliding_windows=windows,
        experts=experts,
    )


def read_gguf(meta: Metadata) -> Values:
    shared = meta.shape("blk.0.ffn_gate_shexp.weight", 2)[0]
    return {
        **read_rope(meta),
        **read_experts(meta, norm_topk_prob=False),
        "qkv_bias": meta.has_tensor("attn_q.bias"),
        "moe_intermediate_size": read_expert_width(meta),
        "shared_expert_intermediate_size": meta.get("expert_shared_feed_forward_length") or shared,
    }


SHARED_EXPERT = {
    "post_attention_layernorm": ModuleRole(
        "norm", "mlp.router", also_read_by=("mlp.experts.gate_up", "mlp.shared.gate_up")
    ),
    "mlp.shared_expert_gate": ROUTER,
    "mlp.shared_expert.gate_proj": SHARED_GATE_UP,
    "mlp.shared_expert.up_proj": SHARED_GATE_UP,
    "mlp.shared_expert.down_proj": SHARED_DOWN,
}

ARCHITECTURE = Architecture(
    model_type="qwen2_moe",
    read_config=read_config,
    tensors=llama_tensors(
        LLAMA_LAYER, {**LLAMA_ATTENTION, **PRE_EXPERTS_NORM, **EXPERTS, **SHARED_EXPERT}
    ),
    gguf=GgufFormat(
        name="qwen2moe",
        read=read_gguf,
        outside=gguf.OUTSIDE,
        layer={
            **gguf.LLAMA_ATTENTION,
            **gguf.PRE_MLP_NORM,
            **gguf.EXPERTS,
            "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
            **{f"ffn_{x}_shexp": f"mlp.shared_expert.{x}_proj" for x in ("gate", "up", "down")},
        },
        biased=gguf.QKV_BIASED,
    ),
    torch=True,
    tiny_config={
        "num_hidden_layers": 3,
        "num_experts": 10,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 20,
        "shared_expert_intermediate_size": 52,
        "mlp_only_layers": [1],
    },
    norm_eps=1e-6,
    n_kv_heads=16,
)
