"""Mistral (Jiang et al. 2023): Llama with a sliding window of attention in every layer. Keys before
it stay in the prefix cache until their memory is needed. Later Mistrals have no window. Its GGUF
files name themselves llama."""

from __future__ import annotations

from gpu.architectures.common.architecture import Architecture
from gpu.architectures.common.hyperparameters import Hyperparameters
from gpu.architectures.common.llama_tensors import LLAMA_LAYER, llama_tensors
from gpu.architectures.common.readers import Sizes, read_full_rope, read_sliding_window
from gpu.files.json_object import JsonObject


def read_config(
    config: JsonObject, sizes: Sizes, default_window: int | None = 4096
) -> Hyperparameters:
    config.choice("hidden_act", ("silu",), "silu")
    window = read_sliding_window(config, default_window)
    return Hyperparameters(
        rope=read_full_rope(config, sizes),
        sliding_windows=(window,) * sizes.n_layers if window else (),
    )


ARCHITECTURE = Architecture(
    model_type="mistral",
    read_config=read_config,
    tensors=llama_tensors(LLAMA_LAYER),
    torch=True,
    tiny_config={
        "hidden_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "intermediate_size": 90,
        "sliding_window": 7,
    },
    norm_eps=1e-6,
    n_kv_heads=8,
)
