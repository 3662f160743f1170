"""What config.json means in each architecture that can be run: a small reader for each.

Defaults are those of the architecture's configuration in transformers, because files leave out what
they do not change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from gpu.config.experts import MAX_WIDTH, Experts, read_dense_layers, read_experts
from gpu.config.readers import (
    FULL,
    WINDOWED,
    Sizes,
    of_layers,
    read_cap,
    read_gelu,
    read_late_windows,
    read_rotary_dim,
    read_two_ropes,
    read_whole_rope,
    read_window,
    read_windows,
)
from gpu.config.rope import DEFAULT_THETA, read_rope
from gpu.config.traits import Traits
from gpu.json_object import JsonObject


@dataclass(frozen=True, slots=True)
class Family:
    """How config.json of one `model_type` is read.

    read   its traits
    keys   names it has for what others call otherwise: key of Llama's to key of its own
    tied   whether output and embedding are one matrix where the file does not say
    eps, head_dim, n_kv_heads
           what the norms add to a variance, and the sizes, where the file does not say; None: it
           must say (eps), or they follow from the others
    inner  how many times the hidden size the MLP's is, where the file does not say; None: it must
    """

    read: Callable[[JsonObject, Sizes], Traits]
    keys: Mapping[str, str] | None = None
    tied: bool = False
    eps: float | None = None
    head_dim: int | None = None
    n_kv_heads: int | None = None
    inner: int | None = None


def _llama(config: JsonObject, sizes: Sizes) -> Traits:
    config.choice("hidden_act", ("silu",), "silu")
    bias = config.boolean("attention_bias", False)
    return Traits(
        attention_bias=bias,
        out_bias=bias,
        mlp_bias=config.boolean("mlp_bias", False),
        rope=read_whole_rope(config, sizes),
    )


def _qwen2(config: JsonObject, sizes: Sizes) -> Traits:
    config.choice("hidden_act", ("silu",), "silu")
    return Traits(
        attention_bias=True,
        rope=read_whole_rope(config, sizes),
        windows=read_late_windows(config, sizes),
    )


def _mistral(config: JsonObject, sizes: Sizes) -> Traits:
    config.choice("hidden_act", ("silu",), "silu")
    window = read_window(config) if "sliding_window" in config else None
    return Traits(
        rope=read_whole_rope(config, sizes),
        windows=(window,) * sizes.n_layers if window else (),
    )


def _smollm3(config: JsonObject, sizes: Sizes) -> Traits:
    """Every fourth layer has no positions (NoPE), or those where no_rope_layers has a 0."""
    traits = _llama(config, sizes)
    interval = config.integer("no_rope_layer_interval", 1, 1024, 4)
    turned: list[object] = [int((i + 1) % interval != 0) for i in range(sizes.n_layers)]
    if "no_rope_layers" in config:
        turned = of_layers(config, "no_rope_layers", (0, 1), sizes)
    still = tuple(i for i, turns in enumerate(turned) if not turns)
    windows: tuple[int | None, ...] = ()
    if config.boolean("use_sliding_window", False):
        kinds: list[object] = [FULL if turns else WINDOWED for turns in turned]
        windows = read_windows(config, kinds, sizes)
    rope = read_whole_rope(config, sizes, 2e6)
    return replace(traits, rope=rope, still_layers=still, windows=windows)


def _granite(config: JsonObject, sizes: Sizes) -> Traits:
    def multiplier(key: str) -> float:
        return config.number(key, 1e-6, 1e6, 1.0)

    return replace(
        _llama(config, sizes),
        embedding_scale=multiplier("embedding_multiplier"),
        residual_scale=multiplier("residual_multiplier"),
        score_scale=multiplier("attention_multiplier"),
        logit_scale=1.0 / multiplier("logits_scaling"),
    )


def _qwen3(config: JsonObject, sizes: Sizes) -> Traits:
    bias = config.boolean("attention_bias", False)
    traits = _qwen2(config, sizes)
    return replace(traits, attention_bias=bias, out_bias=bias)


def _phi3(config: JsonObject, sizes: Sizes) -> Traits:
    config.choice("hidden_act", ("silu",), "silu")
    rotary_dim = read_rotary_dim(config, sizes, 1.0)
    rope = read_rope(config, sizes.context, rotary_dim, DEFAULT_THETA)
    if rope.scaling not in ("default", "longrope"):
        raise config.error("rope_scaling", "default or longrope in this architecture")
    window = read_window(config) if "sliding_window" in config else sizes.context
    return Traits(
        rope=rope,
        rotary_dim=rotary_dim,
        windows=(window,) * sizes.n_layers if window < sizes.context else (),
    )


def _gemma2(config: JsonObject, sizes: Sizes) -> Traits:
    """Windows in every second layer, from the first on."""
    kinds: list[object] = [WINDOWED if (i + 1) % 2 else FULL for i in range(sizes.n_layers)]
    return replace(
        _gemma(config, sizes, kinds),
        rope=read_whole_rope(config, sizes),
        score_cap=read_cap(config, "attn_logit_softcapping", 50.0),
        logit_cap=read_cap(config, "final_logit_softcapping", 30.0),
    )


def _gemma3(config: JsonObject, sizes: Sizes) -> Traits:
    """Windows in all layers but every sixth."""
    pattern = config.integer("sliding_window_pattern", 1, 1024, 6)
    kinds: list[object] = [WINDOWED if (i + 1) % pattern else FULL for i in range(sizes.n_layers)]
    rope, local = read_two_ropes(config, sizes)
    return replace(
        _gemma(config, sizes, kinds),
        rope=rope,
        local_rope=local,
        score_cap=read_cap(config, "attn_logit_softcapping", None),
        logit_cap=read_cap(config, "final_logit_softcapping", None),
    )


def _gemma(config: JsonObject, sizes: Sizes, kinds: list[object]) -> Traits:
    config.choice("hidden_activation", ("gelu_pytorch_tanh",), "gelu_pytorch_tanh")
    if config.boolean("use_bidirectional_attention", False):
        raise config.error("use_bidirectional_attention", "false: the engine writes text")
    bias = config.boolean("attention_bias", False)
    return Traits(
        attention_bias=bias,
        out_bias=bias,
        activation="gelu_tanh",
        windows=read_windows(config, kinds, sizes),
        score_scale=config.number("query_pre_attn_scalar", 1e-6, 1e9, 256.0) ** -0.5,
        embedding_scale=math.sqrt(sizes.hidden_size),
    )


def _gpt2(config: JsonObject, sizes: Sizes) -> Traits:
    for key in ("scale_attn_by_inverse_layer_idx", "add_cross_attention"):
        if config.boolean(key, False):
            raise config.error(key, "false, the only value supported")
    scaled = config.boolean("scale_attn_weights", True)
    return Traits(
        attention_bias=True,
        out_bias=True,
        mlp_bias=True,
        activation=read_gelu(config, "gelu_new"),
        rotary_dim=0,
        score_scale=None if scaled else 1.0,
    )


def _gpt_neox(config: JsonObject, sizes: Sizes) -> Traits:
    bias = config.boolean("attention_bias", True)
    rotary_dim = read_rotary_dim(config, sizes, config.number("rotary_pct", 0.0, 1.0, 0.25))
    theta = config.number("rotary_emb_base", 1.0, 1e12, DEFAULT_THETA)
    return Traits(
        attention_bias=bias,
        out_bias=bias,
        mlp_bias=True,
        activation=read_gelu(config, "gelu"),
        rope=read_rope(config, sizes.context, rotary_dim, theta),
        rotary_dim=rotary_dim,
        parallel=config.boolean("use_parallel_residual", True),
    )


def _mixtral(config: JsonObject, sizes: Sizes) -> Traits:
    experts = read_experts(config, n=8, per_token=2, width="intermediate_size", normalised=True)
    rope = read_whole_rope(config, sizes, 1e6)
    return replace(_mistral(config, sizes), rope=rope, experts=experts)


def _qwen2_moe(config: JsonObject, sizes: Sizes) -> Traits:
    """Windows in every second layer below `max_window_layers`, where they are switched on."""
    config.choice("hidden_act", ("silu",), "silu")
    windows: tuple[int | None, ...] = ()
    if config.boolean("use_sliding_window", False):
        last = config.integer("max_window_layers", 0, 1024, 28)
        n = sizes.n_layers
        kinds: list[object] = [FULL if i % 2 or i >= last else WINDOWED for i in range(n)]
        windows = read_windows(config, kinds, sizes)
    shared = config.integer("shared_expert_intermediate_size", 1, MAX_WIDTH, 5632)
    experts = _qwen_experts(config, sizes, n=60, per_token=4, width=1408, shared_width=shared)
    return Traits(
        attention_bias=config.boolean("qkv_bias", True),
        rope=read_whole_rope(config, sizes),
        windows=windows,
        experts=experts,
    )


def _qwen3_moe(config: JsonObject, sizes: Sizes) -> Traits:
    config.choice("hidden_act", ("silu",), "silu")
    bias = config.boolean("attention_bias", False)
    has_window = config.boolean("use_sliding_window", False)
    window = read_window(config) if has_window else None
    return Traits(
        attention_bias=bias,
        out_bias=bias,
        rope=read_whole_rope(config, sizes),
        windows=(window,) * sizes.n_layers if window else (),
        experts=_qwen_experts(config, sizes, n=128, per_token=8, width=768),
    )


def _qwen_experts(
    config: JsonObject, sizes: Sizes, *, n: int, per_token: int, width: int, shared_width: int = 0
) -> Experts | None:
    """None where every layer is dense."""
    found = read_experts(
        config,
        n=n,
        per_token=per_token,
        width="moe_intermediate_size",
        default_width=width,
        shared_width=shared_width,
    )
    dense = read_dense_layers(config, sizes)
    return None if len(dense) == sizes.n_layers else replace(found, dense_layers=dense)


def _olmoe(config: JsonObject, sizes: Sizes) -> Traits:
    if "clip_qkv" in config:
        raise config.error("clip_qkv", "null, the only value supported")
    experts = read_experts(config, n=64, per_token=8, width="intermediate_size")
    return replace(_llama(config, sizes), mlp_bias=False, experts=experts)


_GPT2_KEYS = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "intermediate_size": "n_inner",
    "rms_norm_eps": "layer_norm_epsilon",
    "hidden_act": "activation_function",
}

FAMILIES: dict[str, Family] = {
    "llama": Family(_llama),
    "qwen2": Family(_qwen2, eps=1e-6),
    "mistral": Family(_mistral, eps=1e-6, n_kv_heads=8),
    "smollm3": Family(_smollm3, tied=True, eps=1e-6, n_kv_heads=4),
    "granite": Family(_granite, eps=1e-6),
    "qwen3": Family(_qwen3, eps=1e-6, head_dim=128),
    "olmo2": Family(_llama, eps=1e-5),
    "phi3": Family(_phi3, eps=1e-5),
    "gemma2": Family(_gemma2, tied=True, eps=1e-6, head_dim=256, n_kv_heads=4),
    "gemma3_text": Family(_gemma3, tied=True, eps=1e-6, head_dim=256, n_kv_heads=4),
    "mixtral": Family(_mixtral, eps=1e-5, n_kv_heads=8),
    "qwen2_moe": Family(_qwen2_moe, eps=1e-6, n_kv_heads=16),
    "qwen3_moe": Family(_qwen3_moe, eps=1e-6, n_kv_heads=4),
    "olmoe": Family(_olmoe, eps=1e-5),
    "gpt2": Family(_gpt2, keys=_GPT2_KEYS, tied=True, eps=1e-5, inner=4),
    "gpt_neox": Family(_gpt_neox, keys={"rms_norm_eps": "layer_norm_eps"}, eps=1e-5),
}
MODEL_TYPES = tuple(FAMILIES)
