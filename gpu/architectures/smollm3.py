"""SmolLM3 (Bakouch et al. 2025): Llama with every fourth layer without positions (NoPE, Kazemnejad
et al. 2023; mixed with rotary layers as in RNoPE, Yang et al. 2025)."""

from __future__ import annotations

from dataclasses import replace

from gpu.architectures import llama
from gpu.architectures.common import llama_gguf as gguf
from gpu.architectures.common.architecture import Architecture
from gpu.architectures.common.gguf_format import GgufFormat
from gpu.architectures.common.hyperparameters import Hyperparameters
from gpu.architectures.common.llama_tensors import LLAMA_LAYER, llama_tensors
from gpu.architectures.common.readers import (
    FULL_ATTENTION,
    SLIDING_ATTENTION,
    Sizes,
    read_full_rope,
    read_layer_list,
    read_sliding_windows,
)
from gpu.files.json_object import JsonObject


def read_config(config: JsonObject, sizes: Sizes) -> Hyperparameters:
    """Every fourth layer has no positions (NoPE), or those with a 0 in no_rope_layers."""
    interval = config.integer("no_rope_layer_interval", 1, 1024, 4)
    has_rope: list[object] = [int((i + 1) % interval != 0) for i in range(sizes.n_layers)]
    if "no_rope_layers" in config:
        has_rope = read_layer_list(config, "no_rope_layers", (0, 1), sizes)
    windows: tuple[int | None, ...] = ()
    if config.boolean("use_sliding_window", False):
        kinds: list[object] = [FULL_ATTENTION if has else SLIDING_ATTENTION for has in has_rope]
        windows = read_sliding_windows(config, kinds, sizes, None)
    return replace(
        llama.read_config(config, sizes),
        rope=read_full_rope(config, sizes, 2e6),
        nope_layers=tuple(i for i, has in enumerate(has_rope) if not has),
        sliding_windows=windows,
    )


ARCHITECTURE = Architecture(
    model_type="smollm3",
    read_config=read_config,
    tensors=llama_tensors(LLAMA_LAYER),
    gguf=GgufFormat(
        name="smollm3",
        read=llama.read_gguf,
        outside=gguf.OUTSIDE,
        layer=gguf.LLAMA_LAYER,
        biased=gguf.ALL_BIASED,
        qk_permuted=True,
    ),
    torch=True,
    tiny_config={
        "num_hidden_layers": 5,
        "hidden_size": 60,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "intermediate_size": 84,
    },
    tie_embeddings=True,
    norm_eps=1e-6,
    n_kv_heads=4,
)
