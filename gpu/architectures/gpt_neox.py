"""GPT-NeoX (Black et al. 2022) and Pythia (Biderman et al. 2023)."""

from __future__ import annotations

from gpu.architectures.common.architecture import Architecture
from gpu.architectures.common.gguf_format import GgufFormat, Values
from gpu.architectures.common.hyperparameters import Hyperparameters
from gpu.architectures.common.llama_gguf import GPT_BIASED, GPT_LAYER
from gpu.architectures.common.llama_tensors import DOWN, OUT, QKV, UP
from gpu.architectures.common.readers import Sizes, read_gelu, read_rotary_dim
from gpu.architectures.common.rope import DEFAULT_THETA, read_rope
from gpu.architectures.common.tensor_map import ModuleRole, TensorMap
from gpu.files.json_object import JsonObject
from gpu.gguf.metadata import Metadata
from gpu.gguf.rope import read_rope_parameters


def read_config(config: JsonObject, sizes: Sizes) -> Hyperparameters:
    bias = config.boolean("attention_bias", True)
    rotary_dim = read_rotary_dim(config, sizes, config.number("rotary_pct", 0.0, 1.0, 0.25))
    theta = config.number("rotary_emb_base", 1.0, 1e12, DEFAULT_THETA)
    return Hyperparameters(
        attention_bias=bias,
        out_bias=bias,
        mlp_bias=True,
        activation=read_gelu(config, "gelu"),
        rope=read_rope(config, sizes.context, rotary_dim, theta),
        rotary_dim=rotary_dim,
        parallel_residual=config.boolean("use_parallel_residual", True),
    )


def read_gguf(meta: Metadata) -> Values:
    return {
        "layer_norm_eps": meta.get("attention.layer_norm_epsilon"),
        "rope_parameters": read_rope_parameters(meta, partial=True),
        "use_parallel_residual": meta.boolean("use_parallel_residual", True),
        "attention_bias": meta.has_tensor("attn_qkv.bias"),
    }


LAYER = {
    "input_layernorm": ModuleRole("norm", "attn.norm", "always"),
    "attention.query_key_value": QKV,
    "attention.dense": OUT,
    "post_attention_layernorm": ModuleRole("norm", "mlp.norm", "always"),
    "mlp.dense_h_to_4h": UP,
    "mlp.dense_4h_to_h": DOWN,
}

ARCHITECTURE = Architecture(
    model_type="gpt_neox",
    read_config=read_config,
    tensors=TensorMap(
        prefix="gpt_neox.layers",
        before={"gpt_neox.embed_in": ModuleRole("embedding", "embed")},
        dense=LAYER,
        after={
            "gpt_neox.final_layer_norm": ModuleRole("norm", "head.norm", "always"),
            "embed_out": ModuleRole("head", "head"),
        },
        qkv_by_head=True,
    ),
    gguf=GgufFormat(
        name="gptneox",
        read=read_gguf,
        outside={
            "token_embd": "gpt_neox.embed_in",
            "output_norm": "gpt_neox.final_layer_norm",
            "output": "embed_out",
        },
        layer=dict(zip(GPT_LAYER, LAYER, strict=True)),
        biased=GPT_BIASED,
    ),
    config_keys={"rms_norm_eps": "layer_norm_eps"},
    tiny_config={
        "hidden_size": 96,
        "num_key_value_heads": 6,
        "intermediate_size": 130,
    },
    norm_eps=1e-5,
)
