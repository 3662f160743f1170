"""ModernBERT (Warner et al. 2024): an encoder with rotary positions, a gated MLP and norms before
attention and MLP. Every third layer attends to the whole text, the others to near tokens on both
sides, with another rotary base. gte-modernbert and modernbert-embed are ModernBERTs."""

from __future__ import annotations

from gpu.architectures.common.architecture import Architecture
from gpu.architectures.common.hyperparameters import Hyperparameters
from gpu.architectures.common.llama_tensors import DOWN, GATE_UP, OUT, QKV
from gpu.architectures.common.readers import (
    FULL_ATTENTION,
    SLIDING_ATTENTION,
    Sizes,
    read_gelu,
    read_global_and_local_rope,
    read_layer_list,
)
from gpu.architectures.common.rope import MAX_CONTEXT
from gpu.architectures.common.tensor_map import ModuleRole, TensorMap
from gpu.files.json_object import JsonObject


def read_config(config: JsonObject, sizes: Sizes) -> Hyperparameters:
    if config.boolean("norm_bias", False):
        raise config.error("norm_bias", "false")
    rope, local = read_global_and_local_rope(config, sizes, 160_000.0)
    has_biases = config.boolean("attention_bias", False)
    return Hyperparameters(
        attention_bias=has_biases,
        out_bias=has_biases,
        mlp_bias=config.boolean("mlp_bias", False),
        layer_norm=True,
        activation=read_gelu(config, "gelu"),
        rope=rope,
        local_rope=local,
        sliding_windows=_read_windows(config, sizes),
    )


def _read_windows(config: JsonObject, sizes: Sizes) -> tuple[int | None, ...]:
    """`local_attention` counts the tokens on both sides."""
    every = config.integer("global_attn_every_n_layers", 1, 1024, 3)
    kinds: list[object] = [
        SLIDING_ATTENTION if i % every else FULL_ATTENTION for i in range(sizes.n_layers)
    ]
    if "layer_types" in config:
        kinds = read_layer_list(config, "layer_types", (FULL_ATTENTION, SLIDING_ATTENTION), sizes)
    window = config.integer("local_attention", 1, MAX_CONTEXT, 128) // 2 + 1
    return tuple(window if kind == SLIDING_ATTENTION else None for kind in kinds)


ARCHITECTURE = Architecture(
    model_type="modernbert",
    read_config=read_config,
    tensors=TensorMap(
        prefix="model.layers",
        before={
            "model.embeddings.tok_embeddings": ModuleRole("embedding", "embed"),
            "model.embeddings.norm": ModuleRole("norm", "embed.norm"),
        },
        dense={
            "attn_norm": ModuleRole("norm", "attn.norm"),
            "attn.Wqkv": QKV,
            "attn.Wo": OUT,
            "mlp_norm": ModuleRole("norm", "mlp.norm"),
            "mlp.Wi": GATE_UP,
            "mlp.Wo": DOWN,
        },
        after={"model.final_norm": ModuleRole("norm", "final_norm")},
        not_in_first_layer=("attn_norm",),
    ),
    config_keys={
        "rms_norm_eps": "norm_eps",
        "hidden_act": "hidden_activation",
        "rope_theta": "global_rope_theta",
        "rope_local_base_freq": "local_rope_theta",
    },
    tie_embeddings=True,
    norm_eps=1e-5,
)
