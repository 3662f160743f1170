"""Mapping of tensor names of a checkpoint: its architecture's, adapted to what the file has."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from gpu.architectures import ARCHITECTURES, ENCODER_DECODERS, ENCODERS
from gpu.architectures.common.tensor_map import ModuleRole, TensorMap
from gpu.config import ModelConfig


def tensor_map_of(config: ModelConfig, tensors: Container[object]) -> TensorMap:
    """Return the map of a checkpoint with these tensors; of an encoder-decoder that of its encoder.
    A model saved without its head (the published GPT-2) lacks the first word of every name."""
    layers = frozenset(i for i in range(config.n_layers) if config.moe_of(i))
    architecture = (ARCHITECTURES | ENCODERS | ENCODER_DECODERS)[config.model_type]
    if architecture.decoder_tensors is not None:
        return _with_mlp_of(config, architecture.tensors)
    found = replace(architecture.tensors, sparse_layers=layers)
    return found if found.embedding in tensors else found.without_first_word


def decoder_map_of(config: ModelConfig) -> TensorMap:
    """Return the map of the decoder of an encoder-decoder."""
    found = ENCODER_DECODERS[config.model_type].decoder_tensors
    assert found is not None
    return _with_mlp_of(config, found)


def _with_mlp_of(config: ModelConfig, tensors: TensorMap) -> TensorMap:
    """Return the map without the modules of the MLP that this model does not have: the gated one or
    the other."""
    return tensors.without_mlp("mlp.up" if config.gated_mlp else "mlp.gate_up")


def expert_modules(config: ModelConfig, layer: int, op: str) -> list[tuple[str, ...]]:
    """Return, for each expert of a layer, the modules whose rows alternate in the matrix that the
    dispatch `op` reads, by the names they have where every expert has tensors of its own."""
    tensors, moe = ARCHITECTURES[config.model_type].tensors, config.moe_of(layer)
    modules = [m for m, role in tensors.sparse.items() if role.op == op and "*" in m]
    return [
        tuple(f"{tensors.prefix}.{layer}.{module.replace('*', str(e))}" for module in modules)
        for e in range(moe.n_experts if moe else 0)
    ]


def has_biases(config: ModelConfig, role: ModuleRole) -> bool:
    """Return whether modules of this role have biases in this model."""
    return role.biases == "always" or bool(role.biases and getattr(config, role.biases))
