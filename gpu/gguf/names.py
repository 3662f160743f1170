"""What GGUF calls tensors, and what checkpoints of Hugging Face call them.

GGUF's names are those of llama.cpp's `gguf` package (gguf-py/gguf/tensor_mapping.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

ROPE_FACTORS = "rope_freqs.weight"
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"
OF_CONFIG = (ROPE_FACTORS, LONG_FACTORS, SHORT_FACTORS)
"""Tensors that a checkpoint has in its config.json."""
_COMPUTED = re.compile(r"blk\.\d{1,4}\.attn_rot_embd\.weight", re.ASCII)
"""In old files: rotary positions, which follow from the config."""
_INSIDE = re.compile(r"blk\.(\d{1,4})\.(\w+?)(?:\.(\d{1,4}))?\.(weight|bias)", re.ASCII)
_OUTSIDE = re.compile(r"(\w+)\.(weight|bias)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Found:
    """The module of a checkpoint that a tensor is of, with a `*` for the number of an expert where
    the tensor has all experts, one after the other."""

    module: str
    suffix: str

    @property
    def name(self) -> str:
        return f"{self.module}.{self.suffix}"

    def of_expert(self, number: int) -> str:
        return self.name.replace("*", str(number))


@dataclass(frozen=True, slots=True)
class Names:
    """The modules of an architecture, by GGUF's names for them.

    layers           where layers are in a checkpoint; the number of a layer follows
    outside, inside  of layers
    biased           those that may have a bias
    """

    outside: Mapping[str, str]
    inside: Mapping[str, str]
    layers: str = "model.layers"
    biased: frozenset[str] = field(default=frozenset())

    def find(self, tensor: str) -> Found | None:
        """None for what the architecture has not. Files of the time before experts were put into
        one tensor have `blk.0.ffn_gate.3.weight` for the fourth one's part of `ffn_gate_exps`."""
        if match := _INSIDE.fullmatch(tensor):
            layer, module, expert, suffix = match.groups()
            known = self.inside.get(module if expert is None else f"{module}_exps")
            if known is None or (suffix == "bias" and module not in self.biased):
                return None
            if expert is not None:
                known = known.replace("*", str(int(expert)))
            return Found(f"{self.layers}.{int(layer)}.{known}", suffix)
        if match := _OUTSIDE.fullmatch(tensor):
            module, suffix = match.groups()
            known = self.outside.get(module)
            if known is not None and (suffix == "weight" or module in self.biased):
                return Found(known, suffix)
        return None


def is_needed(tensor: str) -> bool:
    """Is it a weight? Others are said in the config, or follow from it."""
    return tensor not in OF_CONFIG and _COMPUTED.fullmatch(tensor) is None


_ENDS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_HEADS = {f"attn_{x}": f"self_attn.{x}_proj" for x in "qkv"}
_HEAD_NORMS = {f"attn_{x}_norm": f"self_attn.{x}_norm" for x in "qk"}
_OUT = {"attn_output": "self_attn.o_proj"}
_ATTENTION = {"attn_norm": "input_layernorm", **_HEADS, **_OUT}
_MLP = {f"ffn_{x}": f"mlp.{x}_proj" for x in ("gate", "up", "down")}
_NORM_BETWEEN = {"ffn_norm": "post_attention_layernorm"}
_NORMS_AFTER = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_NORMS_AROUND = {**_NORMS_AFTER, "ffn_norm": "pre_feedforward_layernorm"}
_EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    **{f"ffn_{x}_exps": f"mlp.experts.*.{x}_proj" for x in ("gate", "up", "down")},
}
_MIXTRAL_EXPERTS = {
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.*.w1",
    "ffn_up_exps": "block_sparse_moe.experts.*.w3",
    "ffn_down_exps": "block_sparse_moe.experts.*.w2",
}
_SHARED_EXPERT = {
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    **{f"ffn_{x}_shexp": f"mlp.shared_expert.{x}_proj" for x in ("gate", "up", "down")},
}
_GPT_LAYER = ("attn_norm", "attn_qkv", "attn_output", "ffn_norm", "ffn_up", "ffn_down")

_OF_HEADS = frozenset(_HEADS)
_OF_ATTENTION = frozenset({**_HEADS, **_OUT})
_OF_ALL = frozenset({**_HEADS, **_OUT, **_MLP})

LLAMA = Names(_ENDS, {**_ATTENTION, **_NORM_BETWEEN, **_MLP}, biased=_OF_ALL)
QWEN2 = Names(_ENDS, LLAMA.inside, biased=_OF_HEADS)
QWEN3 = Names(_ENDS, {**LLAMA.inside, **_HEAD_NORMS}, biased=_OF_ATTENTION)
MIXTRAL = Names(_ENDS, {**_ATTENTION, **_NORM_BETWEEN, **_MIXTRAL_EXPERTS})
QWEN2_MOE = Names(
    _ENDS, {**_ATTENTION, **_NORM_BETWEEN, **_EXPERTS, **_SHARED_EXPERT}, biased=_OF_HEADS
)
QWEN3_MOE = Names(
    _ENDS, {**_ATTENTION, **_HEAD_NORMS, **_NORM_BETWEEN, **_EXPERTS}, biased=_OF_ATTENTION
)
OLMO2 = Names(
    _ENDS, {**_HEADS, **_HEAD_NORMS, **_OUT, **_MLP, **_NORMS_AFTER}, biased=_OF_ATTENTION
)
GEMMA2 = Names(_ENDS, {**_ATTENTION, **_MLP, **_NORMS_AROUND}, biased=_OF_ATTENTION)
GEMMA3 = Names(_ENDS, {**GEMMA2.inside, **_HEAD_NORMS}, biased=_OF_ATTENTION)
PHI3 = Names(
    _ENDS,
    {
        "attn_norm": "input_layernorm",
        "attn_qkv": "self_attn.qkv_proj",
        **_OUT,
        **_NORM_BETWEEN,
        "ffn_up": "mlp.gate_up_proj",
        "ffn_down": "mlp.down_proj",
    },
)
GPT2 = Names(
    {
        "token_embd": "transformer.wte",
        "position_embd": "transformer.wpe",
        "output_norm": "transformer.ln_f",
        "output": "lm_head",
    },
    dict(
        zip(
            _GPT_LAYER,
            ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj"),
            strict=True,
        )
    ),
    layers="transformer.h",
    biased=frozenset({"output_norm", *_GPT_LAYER}),
)
GPT_NEOX = Names(
    {
        "token_embd": "gpt_neox.embed_in",
        "output_norm": "gpt_neox.final_layer_norm",
        "output": "embed_out",
    },
    dict(
        zip(
            _GPT_LAYER,
            (
                "input_layernorm",
                "attention.query_key_value",
                "attention.dense",
                "post_attention_layernorm",
                "mlp.dense_h_to_4h",
                "mlp.dense_4h_to_h",
            ),
            strict=True,
        )
    ),
    layers="gpt_neox.layers",
    biased=frozenset({"output_norm", *_GPT_LAYER}),
)
