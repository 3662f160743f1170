"""What the tensors of a checkpoint are to each architecture, by their names."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from gpu.config import ModelConfig

Kind = Literal["embedding", "attention", "mlp", "norm", "head", "unused"]
Lies = Literal["padded", "joined", "paired", "transposed", "table"]


@dataclass(frozen=True, slots=True)
class Part:
    """A module of a checkpoint.

    op     the dispatch that reads it, after the name of its layer
    biases the trait that says whether it has them; "": it has none, "always"
    lies   how it is placed: vectors padded alone; joined, one behind the other without padding; or
           paired with another and padded together. Matrices: transposed, or as a table of float32
    """

    kind: Kind
    op: str
    biases: str = ""
    lies: Lies = "padded"
    bias_lies: Lies = "padded"


@dataclass(frozen=True, slots=True)
class Names:
    """Of one architecture: its parts in the order of a step, by module.

    layer      where layers are: the number of a layer follows
    first      outside of the layers and read before them; last: after them
    """

    layer: str
    first: Mapping[str, Part]
    inside: Mapping[str, Part]
    last: Mapping[str, Part]

    @property
    def embedding(self) -> str:
        return next(iter(self.first)) + ".weight"

    @property
    def bare(self) -> Names:
        """Without the first word of what has more than one."""

        def cut(parts: Mapping[str, Part]) -> dict[str, Part]:
            return {module.partition(".")[2] or module: part for module, part in parts.items()}

        return Names(self.layer.partition(".")[2], cut(self.first), self.inside, cut(self.last))

    @property
    def head(self) -> str:
        return next(name for name, part in self.last.items() if part.kind == "head") + ".weight"

    def find(self, tensor: str) -> tuple[int | None, str, Part, bool] | None:
        """(layer, module, part, whether it is a bias); None for what the architecture has not."""
        pattern = rf"(?:{re.escape(self.layer)}\.(\d+)\.)?(.+)\.(weight|bias)"
        match = re.fullmatch(pattern, tensor, re.ASCII)
        if match is None:
            return None
        number, module, suffix = match.groups()
        part = ({**self.first, **self.last} if number is None else self.inside).get(module)
        if part is None:
            return None
        return None if number is None else int(number), module, part, suffix == "bias"


def has_biases(config: ModelConfig, part: Part) -> bool:
    return part.biases == "always" or bool(part.biases and getattr(config, part.biases))


_QKV = Part("attention", "attn.qkv", "attention_bias", bias_lies="joined")
_GATE_UP = Part("mlp", "mlp.gate_up", "mlp_bias", bias_lies="paired")
_OUT = Part("attention", "attn.out", "out_bias")
_DOWN = Part("mlp", "mlp.down", "mlp_bias")
_HEADS = {f"self_attn.{x}_proj": _QKV for x in "qkv"}
_HEAD_NORMS = {f"self_attn.{x}_norm": Part("norm", "attn.place_heads", lies="joined") for x in "qk"}
_MLP = {"mlp.gate_proj": _GATE_UP, "mlp.up_proj": _GATE_UP, "mlp.down_proj": _DOWN}
_NORM_BEFORE = {"input_layernorm": Part("norm", "attn.qkv")}
_NORM_BETWEEN = {"post_attention_layernorm": Part("norm", "mlp.gate_up")}
_NORM_AFTER_ATTENTION = {"post_attention_layernorm": Part("norm", "attn.out.norm")}
_NORM_BEFORE_MLP = {"pre_feedforward_layernorm": Part("norm", "mlp.gate_up")}
_NORM_AFTER_MLP = {"post_feedforward_layernorm": Part("norm", "mlp.down.norm")}


def _like_llama(*inside: Mapping[str, Part]) -> Names:
    return Names(
        layer="model.layers",
        first={"model.embed_tokens": Part("embedding", "embed")},
        inside={module: part for parts in inside for module, part in parts.items()},
        last={"model.norm": Part("norm", "head"), "lm_head": Part("head", "head")},
    )


_OUT_PROJ = {"self_attn.o_proj": _OUT}
_LLAMA = _like_llama(_NORM_BEFORE, _HEADS, _OUT_PROJ, _NORM_BETWEEN, _MLP)
_OUT_AND_MLP = (_OUT_PROJ, _NORM_AFTER_ATTENTION, _NORM_BEFORE_MLP, _MLP, _NORM_AFTER_MLP)

NAMES: dict[str, Names] = {
    "llama": _LLAMA,
    "qwen2": _LLAMA,
    "mistral": _LLAMA,
    "smollm3": _LLAMA,
    "granite": _LLAMA,
    "qwen3": _like_llama(_NORM_BEFORE, _HEADS, _HEAD_NORMS, _OUT_PROJ, _NORM_BETWEEN, _MLP),
    "olmo2": _like_llama(
        _HEADS, _HEAD_NORMS, _OUT_PROJ, _NORM_AFTER_ATTENTION, _MLP, _NORM_AFTER_MLP
    ),
    "phi3": _like_llama(
        _NORM_BEFORE,
        {"self_attn.qkv_proj": _QKV},
        _OUT_PROJ,
        _NORM_BETWEEN,
        {"mlp.gate_up_proj": _GATE_UP, "mlp.down_proj": _DOWN},
    ),
    "gemma2": _like_llama(_NORM_BEFORE, _HEADS, *_OUT_AND_MLP),
    "gemma3_text": _like_llama(_NORM_BEFORE, _HEADS, _HEAD_NORMS, *_OUT_AND_MLP),
    "gpt2": Names(
        layer="transformer.h",
        first={
            "transformer.wte": Part("embedding", "embed"),
            "transformer.wpe": Part("embedding", "positions", lies="table"),
        },
        inside={
            "ln_1": Part("norm", "attn.norm", "always"),
            "attn.c_attn": replace(_QKV, lies="transposed"),
            "attn.c_proj": replace(_OUT, lies="transposed"),
            "ln_2": Part("norm", "mlp.norm", "always"),
            "mlp.c_fc": Part("mlp", "mlp.up", "mlp_bias", lies="transposed"),
            "mlp.c_proj": replace(_DOWN, lies="transposed"),
        },
        last={
            "transformer.ln_f": Part("norm", "head.norm", "always"),
            "lm_head": Part("head", "head"),
        },
    ),
    "gpt_neox": Names(
        layer="gpt_neox.layers",
        first={"gpt_neox.embed_in": Part("embedding", "embed")},
        inside={
            "input_layernorm": Part("norm", "attn.norm", "always"),
            "attention.query_key_value": _QKV,
            "attention.dense": _OUT,
            "post_attention_layernorm": Part("norm", "mlp.norm", "always"),
            "mlp.dense_h_to_4h": Part("mlp", "mlp.up", "mlp_bias"),
            "mlp.dense_4h_to_h": _DOWN,
        },
        last={
            "gpt_neox.final_layer_norm": Part("norm", "head.norm", "always"),
            "embed_out": Part("head", "head"),
        },
    ),
}
"""By `model_type`."""


def names_of(config: ModelConfig, tensors: Container[object]) -> Names:
    """Of an architecture, as the tensors of a checkpoint have them: the first word is missing where
    the model was saved without its head (the published GPT-2)."""
    names = NAMES[config.model_type]
    return names if names.embedding in tensors else names.bare
