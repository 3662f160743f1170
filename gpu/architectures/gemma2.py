"""Gemma 2 (Gemma Team 2024): Llama with norms before and after attention and MLP, a GeGLU MLP,
embeddings times √hidden, soft caps on scores and logits, and a sliding window in every second
layer. Checkpoints hold the gains of norms minus 1.

    x = x + norm(attention(norm(x)))
    x = x + norm(mlp(norm(x)))
"""

from __future__ import annotations

import math
from dataclasses import replace

from gpu.architectures.common import llama_gguf as gguf
from gpu.architectures.common.architecture import Architecture
from gpu.architectures.common.gguf_format import GgufFormat, Values
from gpu.architectures.common.gguf_readers import (
    read_query_pre_attn_scalar,
    read_rope_and_attention_bias,
)
from gpu.architectures.common.hyperparameters import Hyperparameters
from gpu.architectures.common.llama_tensors import (
    MLP,
    OUT_PROJ,
    POST_ATTENTION_NORM,
    POST_FEEDFORWARD_NORM,
    PRE_ATTENTION_NORM,
    PRE_FEEDFORWARD_NORM,
    QKV_PROJ,
    llama_tensors,
)
from gpu.architectures.common.readers import (
    FULL_ATTENTION,
    SLIDING_ATTENTION,
    Sizes,
    read_full_rope,
    read_sliding_windows,
    read_softcap,
)
from gpu.files.json_object import JsonObject
from gpu.gguf.metadata import Metadata


def read_config(config: JsonObject, sizes: Sizes) -> Hyperparameters:
    """Every second layer has a window, the first included."""
    kinds: list[object] = [
        SLIDING_ATTENTION if (i + 1) % 2 else FULL_ATTENTION for i in range(sizes.n_layers)
    ]
    return replace(
        read_gemma(config, sizes, kinds),
        rope=read_full_rope(config, sizes),
        attn_logit_softcap=read_softcap(config, "attn_logit_softcapping", 50.0),
        final_logit_softcap=read_softcap(config, "final_logit_softcapping", 30.0),
    )


def read_gemma(config: JsonObject, sizes: Sizes, kinds: list[object]) -> Hyperparameters:
    """Read what Gemma 2 and 3 share. `kinds`: the attention of each layer if the file does not
    say."""
    config.choice("hidden_activation", ("gelu_pytorch_tanh",), "gelu_pytorch_tanh")
    if config.boolean("use_bidirectional_attention", False):
        raise config.error("use_bidirectional_attention", "false: the engine writes text")
    bias = config.boolean("attention_bias", False)
    return Hyperparameters(
        attention_bias=bias,
        out_bias=bias,
        activation="gelu_tanh",
        sliding_windows=read_sliding_windows(config, kinds, sizes),
        attn_scale=config.number("query_pre_attn_scalar", 1e-6, 1e9, 256.0) ** -0.5,
        embedding_scale=math.sqrt(sizes.hidden_size),
    )


def read_gguf(meta: Metadata) -> Values:
    return {
        **read_rope_and_attention_bias(meta),
        "query_pre_attn_scalar": read_query_pre_attn_scalar(meta),
        "sliding_window": meta.get("attention.sliding_window"),
        "attn_logit_softcapping": meta.get("attn_logit_softcapping"),
        "final_logit_softcapping": meta.get("final_logit_softcapping"),
    }


OUT_AND_MLP = {
    **OUT_PROJ,
    **POST_ATTENTION_NORM,
    **PRE_FEEDFORWARD_NORM,
    **MLP,
    **POST_FEEDFORWARD_NORM,
}

ARCHITECTURE = Architecture(
    model_type="gemma2",
    read_config=read_config,
    tensors=llama_tensors({**PRE_ATTENTION_NORM, **QKV_PROJ, **OUT_AND_MLP}, norm_plus_one=True),
    gguf=GgufFormat(
        name="gemma2",
        read=read_gguf,
        outside=gguf.OUTSIDE,
        layer=gguf.GEMMA_LAYER,
        biased=gguf.ATTENTION_BIASED,
    ),
    tiny_config={
        "num_hidden_layers": 3,
        "hidden_size": 56,
        "num_attention_heads": 4,
        "intermediate_size": 90,
        "head_dim": 12,
        "sliding_window": 9,
        "query_pre_attn_scalar": 12,
    },
    tie_embeddings=True,
    norm_eps=1e-6,
    head_dim=256,
    n_kv_heads=4,
)
