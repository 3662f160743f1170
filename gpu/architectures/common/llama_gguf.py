"""GGUF's names for the modules of Llama and the architectures derived from it."""

from __future__ import annotations

OUTSIDE = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
QKV_PROJ = {f"attn_{x}": f"self_attn.{x}_proj" for x in "qkv"}
QK_NORM = {f"attn_{x}_norm": f"self_attn.{x}_norm" for x in "qk"}
OUT_PROJ = {"attn_output": "self_attn.o_proj"}
PRE_ATTENTION_NORM = {"attn_norm": "input_layernorm"}
PRE_MLP_NORM = {"ffn_norm": "post_attention_layernorm"}
POST_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
MLP = {f"ffn_{x}": f"mlp.{x}_proj" for x in ("gate", "up", "down")}
EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    **{f"ffn_{x}_exps": f"mlp.experts.*.{x}_proj" for x in ("gate", "up", "down")},
}

LLAMA_ATTENTION = {**PRE_ATTENTION_NORM, **QKV_PROJ, **OUT_PROJ}
LLAMA_LAYER = {**LLAMA_ATTENTION, **PRE_MLP_NORM, **MLP}
GEMMA_LAYER = {
    **LLAMA_ATTENTION,
    **MLP,
    **POST_NORMS,
    "ffn_norm": "pre_feedforward_layernorm",
}

QKV_BIASED = frozenset(QKV_PROJ)
ATTENTION_BIASED = frozenset({**QKV_PROJ, **OUT_PROJ})
ALL_BIASED = frozenset({**QKV_PROJ, **OUT_PROJ, **MLP})

GPT_LAYER = ("attn_norm", "attn_qkv", "attn_output", "ffn_norm", "ffn_up", "ffn_down")
"""The names in a layer of GPT-2 and GPT-NeoX, all of which have biases."""
GPT_BIASED = frozenset({"output_norm", *GPT_LAYER})
