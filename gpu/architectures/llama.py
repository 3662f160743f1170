"""Llama 1 to 3 (Touvron et al. 2023; Grattafiori et al. 2024)."""

from __future__ import annotations

from gpu.architectures.common import llama_gguf as gguf
from gpu.architectures.common.architecture import Architecture
from gpu.architectures.common.gguf_format import GgufFormat, Values
from gpu.architectures.common.gguf_readers import read_rope_and_attention_bias
from gpu.architectures.common.hyperparameters import Hyperparameters
from gpu.architectures.common.llama_tensors import LLAMA_LAYER, llama_tensors
from gpu.architectures.common.readers import Sizes, read_full_rope
from gpu.files.json_object import JsonObject
from gpu.gguf.metadata import Metadata


def read_config(config: JsonObject, sizes: Sizes) -> Hyperparameters:
    config.choice("hidden_act", ("silu",), "silu")
    bias = config.boolean("attention_bias", False)
    return Hyperparameters(
        attention_bias=bias,
        out_bias=bias,
        mlp_bias=config.boolean("mlp_bias", False),
        rope=read_full_rope(config, sizes),
    )


def read_gguf(meta: Metadata) -> Values:
    return {**read_rope_and_attention_bias(meta), "mlp_bias": meta.has_tensor("ffn_gate.bias")}


ARCHITECTURE = Architecture(
    model_type="llama",
    read_config=read_config,
    tensors=llama_tensors(LLAMA_LAYER),
    gguf=GgufFormat(
        name="llama",
        read=read_gguf,
        outside=gguf.OUTSIDE,
        layer=gguf.LLAMA_LAYER,
        biased=gguf.ALL_BIASED,
        qk_permuted=True,
    ),
    torch=True,
    tiny_config={"hidden_size": 96, "head_dim": 16},
)
