"""MPNet (Song et al. 2020): a BERT without token types that adds to attention scores a learned bias
by the distance of the key, the same in every layer (T5). all-mpnet-base and paraphrase-mpnet are
MPNets."""

from __future__ import annotations

from dataclasses import replace

from gpu.architectures.common.hyperparameters import Hyperparameters
from gpu.architectures.common.llama_tensors import DOWN, OUT, QKV, UP
from gpu.architectures.common.readers import Sizes
from gpu.architectures.common.tensor_map import ModuleRole, TensorMap
from gpu.architectures.encoders import bert
from gpu.files.json_object import JsonObject

PADDING, N_BUCKETS = 1, 32
"""The id of padding and the buckets of distances, which transformers has in its code."""


def read_config(config: JsonObject, sizes: Sizes) -> Hyperparameters:
    n_buckets = config.integer("relative_attention_num_buckets", N_BUCKETS, N_BUCKETS, N_BUCKETS)
    return replace(
        bert.read_config(config, sizes),
        first_position=PADDING + 1,
        relative_attention_num_buckets=n_buckets,
    )


ARCHITECTURE = replace(
    bert.ARCHITECTURE,
    model_type="mpnet",
    read_config=read_config,
    tensors=TensorMap(
        prefix="mpnet.encoder.layer",
        before={
            "mpnet.embeddings.word_embeddings": ModuleRole("embedding", "embed"),
            "mpnet.embeddings.position_embeddings": ModuleRole(
                "embedding", "positions", layout="table"
            ),
            "mpnet.embeddings.LayerNorm": ModuleRole("norm", "embed.norm", "always"),
            "mpnet.encoder.relative_attention_bias": ModuleRole("attention", "position_biases"),
        },
        dense={
            **{f"attention.attn.{name}": QKV for name in "qkv"},
            "attention.attn.o": OUT,
            "attention.LayerNorm": ModuleRole("norm", "attn.out.norm", "always"),
            "intermediate.dense": UP,
            "output.dense": DOWN,
            "output.LayerNorm": ModuleRole("norm", "mlp.down.norm", "always"),
        },
        after={},
    ),
)
