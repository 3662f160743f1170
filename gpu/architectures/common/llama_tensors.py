"""Modules as Llama and the architectures derived from it name them, with their roles."""

from __future__ import annotations

from gpu.architectures.common.tensor_map import ModuleRole, Roles, TensorMap

QKV = ModuleRole("attention", "attn.qkv", "attention_bias", bias_layout="concatenated")
OUT = ModuleRole("attention", "attn.out", "out_bias")
GATE_UP = ModuleRole("mlp", "mlp.gate_up", "mlp_bias", bias_layout="paired")
UP = ModuleRole("mlp", "mlp.up", "mlp_bias")
DOWN = ModuleRole("mlp", "mlp.down", "mlp_bias")
ROUTER = ModuleRole("mlp", "mlp.router", layout="exact")
EXPERT_GATE_UP = ModuleRole("mlp", "mlp.experts.gate_up", routed=True)
EXPERT_DOWN = ModuleRole("mlp", "mlp.experts.down", routed=True)
SHARED_GATE_UP = ModuleRole("mlp", "mlp.shared.gate_up")
SHARED_DOWN = ModuleRole("mlp", "mlp.shared.down")

PRE_ATTENTION_NORM = {"input_layernorm": ModuleRole("norm", "attn.qkv")}
QKV_PROJ = {f"self_attn.{x}_proj": QKV for x in "qkv"}
QK_NORM = {
    f"self_attn.{x}_norm": ModuleRole("norm", "attn.qk_norm_rope", layout="concatenated")
    for x in "qk"
}
OUT_PROJ = {"self_attn.o_proj": OUT}
POST_ATTENTION_NORM = {"post_attention_layernorm": ModuleRole("norm", "attn.out.norm")}
MLP = {"mlp.gate_proj": GATE_UP, "mlp.up_proj": GATE_UP, "mlp.down_proj": DOWN}
PRE_MLP_NORM = {"post_attention_layernorm": ModuleRole("norm", "mlp.gate_up")}
"""Llama's norm before the MLP, whose name says that it comes after attention."""
PRE_FEEDFORWARD_NORM = {"pre_feedforward_layernorm": ModuleRole("norm", "mlp.gate_up")}
POST_FEEDFORWARD_NORM = {"post_feedforward_layernorm": ModuleRole("norm", "mlp.down.norm")}

STACKED_EXPERTS = {
    "mlp.experts.gate_up_proj": EXPERT_GATE_UP,
    "mlp.experts.down_proj": EXPERT_DOWN,
}
"""All experts of a layer as one tensor, as newer transformers saves them."""
PRE_EXPERTS_NORM = {
    "post_attention_layernorm": ModuleRole(
        "norm", "mlp.router", also_read_by=("mlp.experts.gate_up",)
    )
}
EXPERTS = {
    "mlp.gate": ROUTER,
    "mlp.experts.*.gate_proj": EXPERT_GATE_UP,
    "mlp.experts.*.up_proj": EXPERT_GATE_UP,
    "mlp.experts.*.down_proj": EXPERT_DOWN,
    **STACKED_EXPERTS,
}

LLAMA_ATTENTION = {**PRE_ATTENTION_NORM, **QKV_PROJ, **OUT_PROJ}
LLAMA_LAYER = {**LLAMA_ATTENTION, **PRE_MLP_NORM, **MLP}
QWEN3_ATTENTION = {**PRE_ATTENTION_NORM, **QKV_PROJ, **QK_NORM, **OUT_PROJ}


def llama_tensors(
    dense: Roles,
    sparse: Roles | None = None,
    *,
    norm_plus_one: bool = False,
    qk_norm_all_heads: bool = False,
) -> TensorMap:
    """Return the map of an architecture with Llama's names outside of the layers."""
    return TensorMap(
        prefix="model.layers",
        before={"model.embed_tokens": ModuleRole("embedding", "embed")},
        dense=dense,
        after={"model.norm": ModuleRole("norm", "head"), "lm_head": ModuleRole("head", "head")},
        sparse=sparse or {},
        norm_plus_one=norm_plus_one,
        qk_norm_all_heads=qk_norm_all_heads,
    )
