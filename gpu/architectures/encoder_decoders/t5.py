"""T5 (Raffel et al. 2020), its version 1.1 and Flan-T5 (Chung et al. 2022).

Pre-norm layers with RMSNorm and without biases, a learned bias by the distance of the key on the
scores of self-attention, which are not scaled, and heads whose size is not that of the stream over
their number. Version 1.1 has a gated MLP, an output head of its own, and logits that are not
scaled. A config.json says that logits are scaled by calling the output head tied; those of
transformers 5 always call it that, and have `scale_decoder_outputs`.
"""

from __future__ import annotations

from collections.abc import Callable

from gpu.architectures.common.architecture import Architecture
from gpu.architectures.common.hyperparameters import Hyperparameters
from gpu.architectures.common.llama_tensors import DOWN, GATE_UP, OUT, QKV, UP
from gpu.architectures.common.readers import Sizes
from gpu.architectures.common.tensor_map import ModuleRole, Roles, TensorMap
from gpu.files.json_object import JsonObject

FEED_FORWARD = {
    "relu": ("relu", False),
    "gated-gelu": ("gelu_tanh", True),
    "gated-silu": ("silu", True),
}
"""Activation of the MLP, and whether it has a gate, by `feed_forward_proj`."""
TRAINED_TOKENS = 512
"""Tokens of the texts that T5 was trained on. There is no table of positions that ends there."""


def reader(
    feed_forward: str, *, scales_tied: bool = True
) -> Callable[[JsonObject, Sizes], Hyperparameters]:
    """Return the reader of a config.json whose `feed_forward_proj` is this one if it names none.
    `scales_tied`: the logits of a tied output head are scaled."""

    def read_config(config: JsonObject, sizes: Sizes) -> Hyperparameters:
        kind = config.choice("feed_forward_proj", tuple(FEED_FORWARD), feed_forward)
        activation, gated = FEED_FORWARD[kind]
        n_buckets = config.integer("relative_attention_num_buckets", 4, 1024, 32)
        farthest = config.integer("relative_attention_max_distance", n_buckets // 2 + 1, 2**16, 128)
        is_scaled = scales_tied and config.boolean(
            "scale_decoder_outputs", config.boolean("tie_word_embeddings", True)
        )
        return Hyperparameters(
            activation=activation,
            gated_mlp=gated,
            rotary_dim=0,
            relative_attention_num_buckets=n_buckets,
            relative_attention_max_distance=farthest,
            attn_scale=1.0,
            logit_scale=sizes.hidden_size**-0.5 if is_scaled else 1.0,
        )

    return read_config


def layer_roles(*, cross: bool) -> Roles:
    """Return the modules of a layer; `cross`: with cross-attention, as in the decoder."""
    attention, crossing, mlp = "layer.0", "layer.1", "layer.2" if cross else "layer.1"
    roles = {
        f"{attention}.layer_norm": ModuleRole("norm", "attn.qkv"),
        **{f"{attention}.SelfAttention.{name}": QKV for name in "qkv"},
        f"{attention}.SelfAttention.relative_attention_bias": ModuleRole(
            "attention", "position_biases"
        ),
        f"{attention}.SelfAttention.o": OUT,
    }
    if cross:
        roles |= {
            f"{crossing}.layer_norm": ModuleRole("norm", "cross.q"),
            f"{crossing}.EncDecAttention.q": ModuleRole("attention", "cross.q"),
            f"{crossing}.EncDecAttention.k": ModuleRole("attention", "cross.kv"),
            f"{crossing}.EncDecAttention.v": ModuleRole("attention", "cross.kv"),
            f"{crossing}.EncDecAttention.o": ModuleRole("attention", "cross.out"),
        }
    return roles | {
        f"{mlp}.layer_norm": ModuleRole("norm", "mlp.gate_up", also_read_by=("mlp.up",)),
        f"{mlp}.DenseReluDense.wi": UP,
        f"{mlp}.DenseReluDense.wi_0": GATE_UP,
        f"{mlp}.DenseReluDense.wi_1": GATE_UP,
        f"{mlp}.DenseReluDense.wo": DOWN,
    }


def tensors(*, is_decoder: bool, biased_layers: str = "first") -> TensorMap:
    """Return the modules of the encoder or the decoder. `biased_layers`: "first", whose position
    biases all layers have, or "all", each its own."""
    stack = "decoder" if is_decoder else "encoder"
    biases = "layer.0.SelfAttention.relative_attention_bias"
    head = {"lm_head": ModuleRole("head", "head")} if is_decoder else {}
    return TensorMap(
        prefix=f"{stack}.block",
        before={"shared": ModuleRole("embedding", "embed")},
        dense=layer_roles(cross=is_decoder),
        after={f"{stack}.final_layer_norm": ModuleRole("norm", "final_norm"), **head},
        only_in_first_layer=(biases,) if biased_layers == "first" else (),
    )


ARCHITECTURE = Architecture(
    model_type="t5",
    read_config=reader("relu"),
    tensors=tensors(is_decoder=False),
    decoder_tensors=tensors(is_decoder=True),
    config_keys={
        "hidden_size": "d_model",
        "num_attention_heads": "num_heads",
        "num_hidden_layers": "num_layers",
        "head_dim": "d_kv",
        "intermediate_size": "d_ff",
        "max_position_embeddings": "n_positions",
        "rms_norm_eps": "layer_norm_epsilon",
    },
    tie_embeddings=True,
    norm_eps=1e-6,
    head_dim=64,
    context=TRAINED_TOKENS,
)
