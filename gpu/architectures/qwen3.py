"""Qwen 3 (Qwen Team 2025), the dense ones: Llama with a norm of each query and key head, and
without the biases of Qwen 2."""

from __future__ import annotations

from dataclasses import replace

from gpu.architectures import qwen2
from gpu.architectures.common import llama_gguf as gguf
from gpu.architectures.common.architecture import Architecture
from gpu.architectures.common.gguf_format import GgufFormat
from gpu.architectures.common.gguf_readers import read_rope_and_attention_bias
from gpu.architectures.common.hyperparameters import Hyperparameters
from gpu.architectures.common.llama_tensors import (
    MLP,
    PRE_MLP_NORM,
    QWEN3_ATTENTION,
    llama_tensors,
)
from gpu.architectures.common.readers import Sizes
from gpu.files.json_object import JsonObject


def read_config(config: JsonObject, sizes: Sizes) -> Hyperparameters:
    bias = config.boolean("attention_bias", False)
    return replace(qwen2.read_config(config, sizes), attention_bias=bias, out_bias=bias)


ARCHITECTURE = Architecture(
    model_type="qwen3",
    read_config=read_config,
    tensors=llama_tensors({**QWEN3_ATTENTION, **PRE_MLP_NORM, **MLP}),
    gguf=GgufFormat(
        name="qwen3",
        read=read_rope_and_attention_bias,
        outside=gguf.OUTSIDE,
        layer={**gguf.LLAMA_LAYER, **gguf.QK_NORM},
        biased=gguf.ATTENTION_BIASED,
    ),
    torch=True,
    tiny_config={"head_dim": 20},
    norm_eps=1e-6,
    head_dim=128,
)
