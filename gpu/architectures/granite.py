"""Granite 3 (Granite Team 2024): Llama with four multipliers in the manner of maximal update
parametrisation (Yang et al. 2022): on embeddings, on scores instead of 1 / √d, on the updates of
the residual stream, on logits."""

from __future__ import annotations

from dataclasses import replace

from gpu.architectures import llama
from gpu.architectures.common import llama_gguf as gguf
from gpu.architectures.common.architecture import Architecture
from gpu.architectures.common.gguf_format import GgufFormat, Values
from gpu.architectures.common.hyperparameters import Hyperparameters
from gpu.architectures.common.llama_tensors import LLAMA_LAYER, llama_tensors
from gpu.architectures.common.readers import Sizes
from gpu.files.json_object import JsonObject
from gpu.gguf.metadata import Metadata


def read_config(config: JsonObject, sizes: Sizes) -> Hyperparameters:
    def multiplier(key: str) -> float:
        return config.number(key, 1e-6, 1e6, 1.0)

    return replace(
        llama.read_config(config, sizes),
        embedding_scale=multiplier("embedding_multiplier"),
        residual_scale=multiplier("residual_multiplier"),
        attn_scale=multiplier("attention_multiplier"),
        logit_scale=1.0 / multiplier("logits_scaling"),
    )


def read_gguf(meta: Metadata) -> Values:
    if not meta.boolean("rope.scaling.finetuned", True):
        raise meta.error("rope.scaling.finetuned", "true: without it there are no positions")
    return {
        **llama.read_gguf(meta),
        "embedding_multiplier": meta.get("embedding_scale"),
        "residual_multiplier": meta.get("residual_scale"),
        "attention_multiplier": meta.get("attention.scale") or meta.head_dim**-0.5,
        "logits_scaling": meta.get("logit_scale"),
    }


ARCHITECTURE = Architecture(
    model_type="granite",
    read_config=read_config,
    tensors=llama_tensors(LLAMA_LAYER),
    gguf=GgufFormat(
        name="granite",
        read=read_gguf,
        outside=gguf.OUTSIDE,
        layer=gguf.LLAMA_LAYER,
        biased=gguf.ALL_BIASED,
        qk_permuted=True,
    ),
    torch=True,
    tiny_config={
        "num_hidden_layers": 3,
        "hidden_size": 56,
        "num_attention_heads": 7,
        "num_key_value_heads": 7,
        "intermediate_size": 68,
        "embedding_multiplier": 12.0,
        "residual_multiplier": 0.22,
        "attention_multiplier": 0.2,
        "logits_scaling": 8.0,
        "tie_word_embeddings": True,
    },
    norm_eps=1e-6,
)
