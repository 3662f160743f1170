"""BERT (Devlin et al. 2018); all-MiniLM, BGE, E5 and GTE are BERTs, too."""

from __future__ import annotations

from gpu.architectures.common.architecture import Architecture
from gpu.architectures.common.hyperparameters import Hyperparameters
from gpu.architectures.common.llama_tensors import DOWN, OUT, QKV, UP
from gpu.architectures.common.readers import Sizes, read_gelu
from gpu.architectures.common.tensor_map import ModuleRole, TensorMap
from gpu.files.json_object import JsonObject


def read_config(config: JsonObject, sizes: Sizes) -> Hyperparameters:
    for key in ("is_decoder", "add_cross_attention"):
        if config.boolean(key, False):
            raise config.error(key, "false, as in an encoder")
    config.choice("position_embedding_type", ("absolute",), "absolute")
    return Hyperparameters(
        attention_bias=True,
        out_bias=True,
        mlp_bias=True,
        activation=read_gelu(config, "gelu"),
        rotary_dim=0,
    )


def tensors(base: str) -> TensorMap:
    """Return the modules of a checkpoint whose encoder is called `base`."""
    table = ModuleRole("embedding", "positions", layout="table")
    return TensorMap(
        prefix=f"{base}.encoder.layer",
        before={
            f"{base}.embeddings.word_embeddings": ModuleRole("embedding", "embed"),
            f"{base}.embeddings.position_embeddings": table,
            f"{base}.embeddings.token_type_embeddings": table,
            f"{base}.embeddings.LayerNorm": ModuleRole("norm", "embed.norm", "always"),
        },
        dense={
            **{f"attention.self.{name}": QKV for name in ("query", "key", "value")},
            "attention.output.dense": OUT,
            "attention.output.LayerNorm": ModuleRole("norm", "attn.out.norm", "always"),
            "intermediate.dense": UP,
            "output.dense": DOWN,
            "output.LayerNorm": ModuleRole("norm", "mlp.down.norm", "always"),
        },
        after={},
    )


ARCHITECTURE = Architecture(
    model_type="bert",
    read_config=read_config,
    tensors=tensors("bert"),
    config_keys={"rms_norm_eps": "layer_norm_eps"},
    tie_embeddings=True,
    norm_eps=1e-12,
)
