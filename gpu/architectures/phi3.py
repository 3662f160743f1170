"""Phi 3, 3.5 and Phi 4 mini (Abdin et al. 2024): Llama whose checkpoints hold queries, keys and
values in one matrix, and gate and up in another. Phi 4 mini rotates three quarters of each head;
long contexts stretch each wavelength by a factor of its own (LongRoPE, Ding et al. 2024)."""

from __future__ import annotations

from gpu.architectures.common import llama_gguf as gguf
from gpu.architectures.common.architecture import Architecture
from gpu.architectures.common.gguf_format import GgufFormat, Values
from gpu.architectures.common.hyperparameters import Hyperparameters
from gpu.architectures.common.llama_tensors import (
    DOWN,
    GATE_UP,
    OUT_PROJ,
    PRE_ATTENTION_NORM,
    PRE_MLP_NORM,
    QKV,
    llama_tensors,
)
from gpu.architectures.common.readers import Sizes, read_rotary_dim, read_sliding_window
from gpu.architectures.common.rope import DEFAULT_THETA, read_rope
from gpu.files.json_object import JsonObject
from gpu.gguf.metadata import Metadata
from gpu.gguf.rope import read_rope_parameters


def read_config(config: JsonObject, sizes: Sizes) -> Hyperparameters:
    config.choice("hidden_act", ("silu",), "silu")
    rotary_dim = read_rotary_dim(config, sizes, 1.0)
    rope = read_rope(config, sizes.context, rotary_dim, DEFAULT_THETA)
    if rope.scaling not in ("default", "longrope"):
        raise config.error("rope_scaling", "default or longrope in this architecture")
    window = read_sliding_window(config, sizes.context) or sizes.context
    return Hyperparameters(
        rope=rope,
        rotary_dim=rotary_dim,
        sliding_windows=(window,) * sizes.n_layers if window < sizes.context else (),
    )


def read_gguf(meta: Metadata) -> Values:
    return {
        "rope_parameters": read_rope_parameters(meta, partial=True),
        "sliding_window": meta.get("attention.sliding_window") or None,  # 0 in files of Phi 4
    }


ARCHITECTURE = Architecture(
    model_type="phi3",
    read_config=read_config,
    tensors=llama_tensors(
        {
            **PRE_ATTENTION_NORM,
            "self_attn.qkv_proj": QKV,
            **OUT_PROJ,
            **PRE_MLP_NORM,
            "mlp.gate_up_proj": GATE_UP,
            "mlp.down_proj": DOWN,
        }
    ),
    gguf=GgufFormat(
        name="phi3",
        read=read_gguf,
        outside=gguf.OUTSIDE,
        layer={
            **gguf.PRE_ATTENTION_NORM,
            "attn_qkv": "self_attn.qkv_proj",
            **gguf.OUT_PROJ,
            **gguf.PRE_MLP_NORM,
            "ffn_up": "mlp.gate_up_proj",
            "ffn_down": "mlp.down_proj",
        },
    ),
    tiny_config={"num_key_value_heads": 3, "sliding_window": 21},
    norm_eps=1e-5,
)
