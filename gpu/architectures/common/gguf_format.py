"""The architectures whose GGUF files are read: their names for tensors, what llama.cpp's converter
(conversion/ of that project) does to the weights of each, and what it says of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpu.errors import ModelError
from gpu.gguf import names
from gpu.gguf.file import GgufFile
from gpu.gguf.metadata import Metadata
from gpu.gguf.names import Names
from gpu.gguf.rope import rope_of
from gpu.json_object import shown

Values = dict[str, Any]

MAX_EXPERTS = 1024
SOFTMAX = 1
"""Of `expert_gating_func`; 0 says nothing."""
LAYERS_27B = {"gemma2": 46, "gemma3": 62}
"""Gemma's models of 27 billion weights, which alone scale scores by another number than the size of
a head. Files do not say it: llama.cpp knows these models by their layers, and so do we."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """What its files are in the terms of a checkpoint.

    model_type     of config.json
    names          of its tensors
    read           what config.json says beside what all files say; see `gpu.gguf.config`
    renamed        what its config.json calls what others call otherwise
    pairs_beside   rotary pairs of queries and keys are neighbours, not halves of a head apart
    heads_apart    queries, keys and values of all heads follow each other in `attn_qkv`, where the
                   checkpoint has those of each head together
    whole_gains    norms hold their gains, where the checkpoint has what these differ from 1 by
    transposed     modules whose matrices a checkpoint has as inputs × outputs
    """

    model_type: str
    names: Names
    read: Callable[[Metadata], Values]
    renamed: Mapping[str, str] = field(default_factory=dict)
    pairs_beside: bool = False
    heads_apart: bool = False
    whole_gains: bool = False
    transposed: tuple[str, ...] = ()


def architecture(file: GgufFile) -> Architecture:
    """Raises ModelError for one that is not in `ARCHITECTURES`."""
    found = file.values.get("general.architecture")
    if not isinstance(found, str) or found not in ARCHITECTURES:
        raise ModelError(
            f"{file.path}: architecture {shown(found)} is not supported in a GGUF file; "
            f"supported: {', '.join(ARCHITECTURES)}"
        )
    if found == "llama" and Metadata(file).integer("expert_count", 0, MAX_EXPERTS, 0):
        return MIXTRAL
    return ARCHITECTURES[found]


# ---- what files of each say ------------------------------------------------------------------


def _llama(meta: Metadata) -> Values:
    return {
        "rope_parameters": rope_of(meta),
        "attention_bias": meta.has_tensor("attn_q.bias"),
        "mlp_bias": meta.has_tensor("ffn_gate.bias"),
    }


def _attention_bias(meta: Metadata) -> Values:
    return {
        "rope_parameters": rope_of(meta),
        "attention_bias": meta.has_tensor("attn_q.bias"),
    }


def _rope_alone(meta: Metadata) -> Values:
    return {"rope_parameters": rope_of(meta)}


def _granite(meta: Metadata) -> Values:
    if not meta.boolean("rope.scaling.finetuned", True):
        raise meta.error("rope.scaling.finetuned", "true: without it nothing is turned")
    multipliers = {
        "embedding_multiplier": meta.get("embedding_scale"),
        "residual_multiplier": meta.get("residual_scale"),
        "attention_multiplier": meta.get("attention.scale") or meta.head_dim**-0.5,
        "logits_scaling": meta.get("logit_scale"),
    }
    return _llama(meta) | multipliers


def _olmo2(meta: Metadata) -> Values:
    if meta.integer("attention.sliding_window", 0, 2**26, 0):
        raise meta.error("attention.sliding_window", "0: OLMo 3 is not supported")
    return _attention_bias(meta)


def _phi3(meta: Metadata) -> Values:
    return {
        "rope_parameters": rope_of(meta, partial=True),
        "sliding_window": meta.get("attention.sliding_window") or None,  # Phi 4 says 0
    }


def _gemma2(meta: Metadata) -> Values:
    return {
        **_attention_bias(meta),
        "query_pre_attn_scalar": _score_scalar(meta),
        "sliding_window": meta.get("attention.sliding_window"),
        "attn_logit_softcapping": meta.get("attn_logit_softcapping"),
        "final_logit_softcapping": meta.get("final_logit_softcapping"),
    }


def _gemma3(meta: Metadata) -> Values:
    full, local = rope_of(meta), meta.number("rope.freq_base_swa", 1.0, 1e12, 1e4)
    return {
        "rope_parameters": {
            "full_attention": full,
            "sliding_attention": {"rope_type": "default", "rope_theta": local},
        },
        "attention_bias": meta.has_tensor("attn_q.bias"),
        "query_pre_attn_scalar": _score_scalar(meta),
        "final_logit_softcapping": meta.get("final_logit_softcapping"),
        **_gemma3_windows(meta),
    }


def _gemma3_windows(meta: Metadata) -> Values:
    """A file names every how many-th layer has no window, or each layer, or (most) neither."""
    if "attention.sliding_window" not in meta:
        return {"sliding_window_pattern": 1}
    key, windowed = "attention.sliding_window_pattern", meta.get("attention.sliding_window")
    of_each = meta.array(key)
    if of_each is None:
        return {"sliding_window": windowed, "sliding_window_pattern": meta.get(key)}
    kinds = ["sliding_attention" if has else "full_attention" for has in of_each]
    return {"sliding_window": windowed, "layer_types": kinds}


def _score_scalar(meta: Metadata) -> int:
    if meta.get("block_count") == LAYERS_27B[meta.arch]:
        return meta.shape("token_embd.weight", 2)[1] // meta.n_heads
    return meta.head_dim


def _gpt2(meta: Metadata) -> Values:
    return {"layer_norm_epsilon": meta.get("attention.layer_norm_epsilon")}


def _gpt_neox(meta: Metadata) -> Values:
    return {
        "layer_norm_eps": meta.get("attention.layer_norm_epsilon"),
        "rope_parameters": rope_of(meta, partial=True),
        "use_parallel_residual": meta.boolean("use_parallel_residual", True),
        "attention_bias": meta.has_tensor("attn_qkv.bias"),
    }


def _mixtral(meta: Metadata) -> Values:
    return _rope_alone(meta) | _experts(meta, normalised=True)


def _olmoe(meta: Metadata) -> Values:
    return _attention_bias(meta) | _experts(meta, normalised=False)


def _qwen2_moe(meta: Metadata) -> Values:
    shared = meta.shape("blk.0.ffn_gate_shexp.weight", 2)[0]
    return {
        **_rope_alone(meta),
        **_experts(meta, normalised=False),
        "qkv_bias": meta.has_tensor("attn_q.bias"),
        "moe_intermediate_size": _expert_width(meta),
        "shared_expert_intermediate_size": meta.get("expert_shared_feed_forward_length") or shared,
    }


def _qwen3_moe(meta: Metadata) -> Values:
    return {
        **_attention_bias(meta),
        **_experts(meta, normalised=True),
        "moe_intermediate_size": _expert_width(meta),
    }


def _experts(meta: Metadata, *, normalised: bool) -> Values:
    """`normalised`: whether llama.cpp divides the weights of those chosen by their sum in this
    architecture, where the file does not say."""
    if meta.integer("expert_gating_func", 0, 2**31, SOFTMAX) not in (0, SOFTMAX):
        raise meta.error("expert_gating_func", f"{SOFTMAX}, a softmax")
    if meta.number("expert_weights_scale", 0.0, 1e6, 1.0) not in (0.0, 1.0):  # 0 says nothing
        raise meta.error("expert_weights_scale", "1, the only value supported")
    return {
        "num_experts": meta.integer("expert_count", 1, MAX_EXPERTS),
        "num_experts_per_tok": meta.integer("expert_used_count", 1, MAX_EXPERTS),
        "norm_topk_prob": meta.boolean("expert_weights_norm", normalised),
    }


def _expert_width(meta: Metadata) -> int:
    return meta.get("expert_feed_forward_length") or meta.shape("blk.0.ffn_gate_exps.weight", 3)[1]


MIXTRAL = Architecture("mixtral", names.MIXTRAL, _mixtral, pairs_beside=True)
"""Its files say that they are `llama`; they have experts."""
_GPT2_KEYS = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "intermediate_size": "n_inner",
}
ARCHITECTURES = {
    "llama": Architecture("llama", names.LLAMA, _llama, pairs_beside=True),
    "qwen2": Architecture("qwen2", names.QWEN2, _rope_alone),
    "qwen3": Architecture("qwen3", names.QWEN3, _attention_bias),
    "qwen2moe": Architecture("qwen2_moe", names.QWEN2_MOE, _qwen2_moe),
    "qwen3moe": Architecture("qwen3_moe", names.QWEN3_MOE, _qwen3_moe),
    "olmoe": Architecture("olmoe", names.QWEN3_MOE, _olmoe),
    "olmo2": Architecture("olmo2", names.OLMO2, _olmo2),
    "smollm3": Architecture("smollm3", names.LLAMA, _llama, pairs_beside=True),
    "granite": Architecture("granite", names.LLAMA, _granite, pairs_beside=True),
    "phi3": Architecture("phi3", names.PHI3, _phi3),
    "gemma2": Architecture("gemma2", names.GEMMA2, _gemma2, whole_gains=True),
    "gemma3": Architecture("gemma3_text", names.GEMMA3, _gemma3, whole_gains=True),
    "gpt2": Architecture(
        "gpt2",
        names.GPT2,
        _gpt2,
        renamed=_GPT2_KEYS,
        transposed=("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"),
    ),
    "gptneox": Architecture("gpt_neox", names.GPT_NEOX, _gpt_neox, heads_apart=True),
}
"""By `general.architecture`. Mistral's files say llama."""
