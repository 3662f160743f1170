"""OLMo 2 (OLMo Team 2024): Llama with norms after attention and MLP in place of those before them,
and norms of queries and keys, over all heads together.

    x = x + norm(attention(x))
    x = x + norm(mlp(x))
"""

from __future__ import annotations

from gpu.architectures import llama
from gpu.architectures.common import llama_gguf as gguf
from gpu.architectures.common.architecture import Architecture
from gpu.architectures.common.gguf_format import GgufFormat, Values
from gpu.architectures.common.gguf_readers import read_rope_and_attention_bias
from gpu.architectures.common.llama_tensors import (
    MLP,
    OUT_PROJ,
    POST_ATTENTION_NORM,
    POST_FEEDFORWARD_NORM,
    QK_NORM,
    QKV_PROJ,
    llama_tensors,
)
from gpu.gguf.metadata import Metadata


def read_gguf(meta: Metadata) -> Values:
    if meta.integer("attention.sliding_window", 0, 2**26, 0):
        raise meta.error("attention.sliding_window", "0: OLMo 3 is not supported")
    return read_rope_and_attention_bias(meta)


ARCHITECTURE = Architecture(
    model_type="olmo2",
    read_config=llama.read_config,
    tensors=llama_tensors(
        {
            **QKV_PROJ,
            **QK_NORM,
            **OUT_PROJ,
            **POST_ATTENTION_NORM,
            **MLP,
            **POST_FEEDFORWARD_NORM,
        },
        qk_norm_all_heads=True,
    ),
    gguf=GgufFormat(
        name="olmo2",
        read=read_gguf,
        outside=gguf.OUTSIDE,
        layer={**gguf.QKV_PROJ, **gguf.QK_NORM, **gguf.OUT_PROJ, **gguf.MLP, **gguf.POST_NORMS},
        biased=gguf.ATTENTION_BIASED,
    ),
    tiny_config={
        "num_hidden_layers": 3,
        "hidden_size": 60,
        "num_attention_heads": 5,
        "num_key_value_heads": 1,
        "intermediate_size": 76,
    },
    norm_eps=1e-5,
)
