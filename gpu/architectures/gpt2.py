"""GPT-2 (Radford et al. 2019)."""

from __future__ import annotations

from dataclasses import replace

from gpu.architectures.common.architecture import Architecture
from gpu.architectures.common.gguf_format import GgufFormat, Values
from gpu.architectures.common.hyperparameters import Hyperparameters
from gpu.architectures.common.llama_gguf import GPT_BIASED, GPT_LAYER
from gpu.architectures.common.llama_tensors import DOWN, OUT, QKV, UP
from gpu.architectures.common.readers import Sizes, read_gelu
from gpu.architectures.common.tensor_map import ModuleRole, TensorMap
from gpu.files.json_object import JsonObject
from gpu.gguf.metadata import Metadata


def read_config(config: JsonObject, sizes: Sizes) -> Hyperparameters:
    for key in ("scale_attn_by_inverse_layer_idx", "add_cross_attention"):
        if config.boolean(key, False):
            raise config.error(key, "false, the only value supported")
    scaled = config.boolean("scale_attn_weights", True)
    return Hyperparameters(
        attention_bias=True,
        out_bias=True,
        mlp_bias=True,
        activation=read_gelu(config, "gelu_new"),
        rotary_dim=0,
        attn_scale=None if scaled else 1.0,
    )


def read_gguf(meta: Metadata) -> Values:
    return {"layer_norm_epsilon": meta.get("attention.layer_norm_epsilon")}


LAYER = {
    "ln_1": ModuleRole("norm", "attn.norm", "always"),
    "attn.c_attn": replace(QKV, layout="transposed"),
    "attn.c_proj": replace(OUT, layout="transposed"),
    "ln_2": ModuleRole("norm", "mlp.norm", "always"),
    "mlp.c_fc": replace(UP, layout="transposed"),
    "mlp.c_proj": replace(DOWN, layout="transposed"),
}

ARCHITECTURE = Architecture(
    model_type="gpt2",
    read_config=read_config,
    tensors=TensorMap(
        prefix="transformer.h",
        before={
            "transformer.wte": ModuleRole("embedding", "embed"),
            "transformer.wpe": ModuleRole("embedding", "positions", layout="table"),
        },
        dense=LAYER,
        after={
            "transformer.ln_f": ModuleRole("norm", "head.norm", "always"),
            "lm_head": ModuleRole("head", "head"),
        },
    ),
    gguf=GgufFormat(
        name="gpt2",
        read=read_gguf,
        outside={
            "token_embd": "transformer.wte",
            "position_embd": "transformer.wpe",
            "output_norm": "transformer.ln_f",
            "output": "lm_head",
        },
        layer=dict(zip(GPT_LAYER, LAYER, strict=True)),
        biased=GPT_BIASED,
    ),
    config_keys={
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "max_position_embeddings": "n_positions",
        "intermediate_size": "n_inner",
        "rms_norm_eps": "layer_norm_epsilon",
        "hidden_act": "activation_function",
    },
    tiny_config={
        "hidden_size": 60,
        "num_attention_heads": 5,
        "num_key_value_heads": 5,
        "intermediate_size": None,
    },
    tie_embeddings=True,
    norm_eps=1e-5,
    intermediate_ratio=4,
)
