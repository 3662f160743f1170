"""What the tensors of a checkpoint are to each architecture, by their names."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from gpu.config import ModelConfig

Kind = Literal["embedding", "attention", "mlp", "norm", "head", "unused"]
Lies = Literal["padded", "joined", "paired", "transposed", "table", "exact"]

WITHOUT_SUFFIX = (".experts.gate_up_proj", ".experts.down_proj")
"""Modules whose tensors end in neither .weight nor .bias: all experts of a layer in one."""


@dataclass(frozen=True, slots=True)
class Part:
    """A module of a checkpoint.

    op      the dispatch that reads it, after the name of its layer; also: others that do
    biases  the trait that says whether it has them; "": it has none, "always"
    lies    how it is placed: vectors padded alone; joined, one behind the other without padding; or
            paired with another and padded together. Matrices: transposed, as a table of float32 of
            which a token reads one row, or exact: in float32 whatever others are stored in
    routed  it belongs to the experts of a layer, of which a token is given to a few
    """

    kind: Kind
    op: str
    biases: str = ""
    lies: Lies = "padded"
    bias_lies: Lies = "padded"
    also: tuple[str, ...] = ()
    routed: bool = False

    @property
    def ops(self) -> tuple[str, ...]:
        """All dispatches that read it."""
        return (self.op, *self.also)


@dataclass(frozen=True, slots=True)
class Found:
    """Where a tensor belongs. `expert`: its number, where it is of one of several."""

    layer: int | None
    module: str
    part: Part
    is_bias: bool
    expert: int = 0


@dataclass(frozen=True, slots=True)
class Names:
    """Of one architecture: its parts in the order of a step, by module. A `*` stands for the number
    of an expert.

    layer      where layers are: the number of a layer follows
    first      outside of the layers and read before them; last: after them
    inside     of layers; sparse: of those in `sparse_layers`, which have experts
    """

    layer: str
    first: Mapping[str, Part]
    inside: Mapping[str, Part]
    last: Mapping[str, Part]
    sparse: Mapping[str, Part] = field(default_factory=dict)
    sparse_layers: frozenset[int] = frozenset()

    @property
    def embedding(self) -> str:
        return next(iter(self.first)) + ".weight"

    @property
    def bare(self) -> Names:
        """Without the first word of what has more than one."""

        def cut(parts: Mapping[str, Part]) -> dict[str, Part]:
            return {module.partition(".")[2] or module: part for module, part in parts.items()}

        first, last = cut(self.first), cut(self.last)
        return replace(self, layer=self.layer.partition(".")[2], first=first, last=last)

    @property
    def head(self) -> str:
        return next(name for name, part in self.last.items() if part.kind == "head") + ".weight"

    def parts_of(self, layer: int | None) -> Mapping[str, Part]:
        """By module; None: outside of the layers."""
        if layer is None:
            return {**self.first, **self.last}
        return self.sparse if layer in self.sparse_layers else self.inside

    def find(self, tensor: str) -> Found | None:
        """None for what the architecture has not."""
        pattern = rf"(?:{re.escape(self.layer)}\.(\d{{1,9}})\.)?(.+?)(?:\.(weight|bias))?"
        match = re.fullmatch(pattern, tensor, re.ASCII)
        if match is None:
            return None
        number, module, suffix = match.groups()
        layer = None if number is None else int(number)
        expert = re.search(r"\.experts\.(\d{1,9})\.", module)
        if expert is not None:
            module = f"{module[: expert.start(1)]}*{module[expert.end(1) :]}"
        part = self.parts_of(layer).get(module)
        if part is None or (suffix is None) != module.endswith(WITHOUT_SUFFIX):
            return None
        return Found(layer, module, part, suffix == "bias", int(expert[1]) if expert else 0)


def expert_modules(config: ModelConfig, layer: int, op: str) -> list[tuple[str, ...]]:
    """Of each expert of a layer, the modules of which the dispatch `op` has a row in turn: by the
    names they have where every expert has tensors of its own."""
    names, experts = NAMES[config.model_type], config.experts_of(layer)
    modules = [m for m, part in names.sparse.items() if part.op == op and "*" in m]
    return [
        tuple(f"{names.layer}.{layer}.{module.replace('*', str(e))}" for module in modules)
        for e in range(experts.n if experts else 0)
    ]


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
_NORM_BEFORE_EXPERTS = Part("norm", "mlp.router", also=("mlp.experts.gate_up",))
_ROUTER = Part("mlp", "mlp.router", lies="exact")
_EXPERT_GATE_UP = Part("mlp", "mlp.experts.gate_up", routed=True)
_EXPERT_DOWN = Part("mlp", "mlp.experts.down", routed=True)
_STACKED = {"mlp.experts.gate_up_proj": _EXPERT_GATE_UP, "mlp.experts.down_proj": _EXPERT_DOWN}
_EXPERTS = {
    "post_attention_layernorm": _NORM_BEFORE_EXPERTS,
    "mlp.gate": _ROUTER,
    "mlp.experts.*.gate_proj": _EXPERT_GATE_UP,
    "mlp.experts.*.up_proj": _EXPERT_GATE_UP,
    "mlp.experts.*.down_proj": _EXPERT_DOWN,
    **_STACKED,
}
_MIXTRAL_EXPERTS = {
    "post_attention_layernorm": _NORM_BEFORE_EXPERTS,
    "block_sparse_moe.gate": _ROUTER,
    "block_sparse_moe.experts.*.w1": _EXPERT_GATE_UP,
    "block_sparse_moe.experts.*.w3": _EXPERT_GATE_UP,
    "block_sparse_moe.experts.*.w2": _EXPERT_DOWN,
    "mlp.gate": _ROUTER,
    **_STACKED,
}
_SHARED_GATE_UP, _SHARED_DOWN = Part("mlp", "mlp.shared.gate_up"), Part("mlp", "mlp.shared.down")
_SHARED_EXPERT = {
    "post_attention_layernorm": Part(
        "norm", "mlp.router", also=("mlp.experts.gate_up", "mlp.shared.gate_up")
    ),
    "mlp.shared_expert_gate": _ROUTER,
    "mlp.shared_expert.gate_proj": _SHARED_GATE_UP,
    "mlp.shared_expert.up_proj": _SHARED_GATE_UP,
    "mlp.shared_expert.down_proj": _SHARED_DOWN,
}


def _like_llama(*inside: Mapping[str, Part], sparse: Sequence[Mapping[str, Part]] = ()) -> Names:
    return Names(
        layer="model.layers",
        first={"model.embed_tokens": Part("embedding", "embed")},
        inside=_together(inside),
        last={"model.norm": Part("norm", "head"), "lm_head": Part("head", "head")},
        sparse=_together(sparse),
    )


def _together(parts: Sequence[Mapping[str, Part]]) -> dict[str, Part]:
    return {module: part for some in parts for module, part in some.items()}


_OUT_PROJ = {"self_attn.o_proj": _OUT}
_LLAMA_ATTENTION = (_NORM_BEFORE, _HEADS, _OUT_PROJ)
_LLAMA = _like_llama(*_LLAMA_ATTENTION, _NORM_BETWEEN, _MLP)
_QWEN3_ATTENTION = (_NORM_BEFORE, _HEADS, _HEAD_NORMS, _OUT_PROJ)
_OUT_AND_MLP = (_OUT_PROJ, _NORM_AFTER_ATTENTION, _NORM_BEFORE_MLP, _MLP, _NORM_AFTER_MLP)

NAMES: dict[str, Names] = {
    "llama": _LLAMA,
    "qwen2": _LLAMA,
    "mistral": _LLAMA,
    "smollm3": _LLAMA,
    "granite": _LLAMA,
    "qwen3": _like_llama(*_QWEN3_ATTENTION, _NORM_BETWEEN, _MLP),
    "mixtral": _like_llama(sparse=(*_LLAMA_ATTENTION, _MIXTRAL_EXPERTS)),
    "qwen2_moe": _like_llama(
        *_LLAMA_ATTENTION, _NORM_BETWEEN, _MLP, sparse=(*_LLAMA_ATTENTION, _EXPERTS, _SHARED_EXPERT)
    ),
    "qwen3_moe": _like_llama(
        *_QWEN3_ATTENTION, _NORM_BETWEEN, _MLP, sparse=(*_QWEN3_ATTENTION, _EXPERTS)
    ),
    "olmoe": _like_llama(sparse=(*_QWEN3_ATTENTION, _EXPERTS)),
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
    layers = frozenset(i for i in range(config.n_layers) if config.experts_of(i))
    names = replace(names, sparse_layers=layers)
    return names if names.embedding in tensors else names.bare
