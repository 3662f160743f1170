"""Qwen 2 and 2.5 (Yang et al. 2024): Llama with biases on queries, keys and values alone. The
larger ones can have a sliding window in their later layers."""

from __future__ import annotations

from gpu.architectures.common import llama_gguf as gguf
from gpu.architectures.common.architecture import Architecture
from gpu.architectures.common.gguf_format import GgufFormat
from gpu.architectures.common.gguf_readers import read_rope
from gpu.architectures.common.hyperparameters import Hyperparameters
from gpu.architectures.common.llama_tensors import LLAMA_LAYER, llama_tensors
from gpu.architectures.common.readers import Sizes, read_full_rope, read_max_window_layers
from gpu.files.json_object import JsonObject


def read_config(config: JsonObject, sizes: Sizes) -> Hyperparameters:
    config.choice("hidden_act", ("silu",), "silu")
    return Hyperparameters(
        attention_bias=True,
        rope=read_full_rope(config, sizes),
        sliding_windows=read_max_window_layers(config, sizes),
    )


ARCHITECTURE = Architecture(
    model_type="qwen2",
    read_config=read_config,
    tensors=llama_tensors(LLAMA_LAYER),
    gguf=GgufFormat(
        name="qwen2",
        read=read_rope,
        outside=gguf.OUTSIDE,
        layer=gguf.LLAMA_LAYER,
        biased=gguf.QKV_BIASED,
    ),
    torch=True,
    norm_eps=1e-6,
)
