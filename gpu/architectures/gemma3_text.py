"""Gemma 3 (Gemma Team 2025), its text models: Gemma 2 with norms of queries and keys in place of
the soft caps, and five layers with a sliding window to each one without. Layers with a window have
another rotary base than those without."""

from __future__ import annotations

from dataclasses import replace

from gpu.architectures import gemma2
from gpu.architectures.common import llama_gguf as gguf
from gpu.architectures.common.architecture import Architecture
from gpu.architectures.common.gguf_format import GgufFormat, Values
from gpu.architectures.common.gguf_readers import read_query_pre_attn_scalar
from gpu.architectures.common.hyperparameters import Hyperparameters
from gpu.architectures.common.llama_tensors import (
    PRE_ATTENTION_NORM,
    QK_NORM,
    QKV_PROJ,
    llama_tensors,
)
from gpu.architectures.common.readers import (
    FULL_ATTENTION,
    SLIDING_ATTENTION,
    Sizes,
    read_global_and_local_rope,
    read_softcap,
)
from gpu.files.json_object import JsonObject
from gpu.gguf.metadata import Metadata
from gpu.gguf.rope import read_rope_parameters


def read_config(config: JsonObject, sizes: Sizes) -> Hyperparameters:
    """All layers but every sixth have a window."""
    pattern = config.integer("sliding_window_pattern", 1, 1024, 6)
    kinds: list[object] = [
        SLIDING_ATTENTION if (i + 1) % pattern else FULL_ATTENTION for i in range(sizes.n_layers)
    ]
    rope, local = read_global_and_local_rope(config, sizes)
    return replace(
        gemma2.read_gemma(config, sizes, kinds),
        rope=rope,
        local_rope=local,
        attn_logit_softcap=read_softcap(config, "attn_logit_softcapping", None),
        final_logit_softcap=read_softcap(config, "final_logit_softcapping", None),
    )


def read_gguf(meta: Metadata) -> Values:
    full, local = read_rope_parameters(meta), meta.number("rope.freq_base_swa", 1.0, 1e12, 1e4)
    return {
        "rope_parameters": {
            "full_attention": full,
            "sliding_attention": {"rope_type": "default", "rope_theta": local},
        },
        "attention_bias": meta.has_tensor("attn_q.bias"),
        "query_pre_attn_scalar": read_query_pre_attn_scalar(meta),
        "final_logit_softcapping": meta.get("final_logit_softcapping"),
        **_read_windows(meta),
    }


def _read_windows(meta: Metadata) -> Values:
    """Files hold the pattern as a period, as a list of layers, or (most) not at all."""
    if "attention.sliding_window" not in meta:
        return {"sliding_window_pattern": 1}
    key, window = "attention.sliding_window_pattern", meta.get("attention.sliding_window")
    layers = meta.array(key)
    if layers is None:
        return {"sliding_window": window, "sliding_window_pattern": meta.get(key)}
    kinds = ["sliding_attention" if has else "full_attention" for has in layers]
    return {"sliding_window": window, "layer_types": kinds}


ARCHITECTURE = Architecture(
    model_type="gemma3_text",
    read_config=read_config,
    tensors=llama_tensors(
        {**PRE_ATTENTION_NORM, **QKV_PROJ, **QK_NORM, **gemma2.OUT_AND_MLP}, norm_plus_one=True
    ),
    gguf=GgufFormat(
        name="gemma3",
        read=read_gguf,
        outside=gguf.OUTSIDE,
        layer={**gguf.GEMMA_LAYER, **gguf.QK_NORM},
        biased=gguf.ATTENTION_BIASED,
    ),
    tiny_config={
        "num_hidden_layers": 7,
        "hidden_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "intermediate_size": 60,
        "head_dim": 12,
        "sliding_window": 17,
        "query_pre_attn_scalar": 12,
    },
    tie_embeddings=True,
    norm_eps=1e-6,
    head_dim=256,
    n_kv_heads=4,
)
