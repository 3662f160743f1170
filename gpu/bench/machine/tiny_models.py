"""Tiny models of every architecture with random weights, made in memory."""

from __future__ import annotations

import json
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gpu.architectures import ARCHITECTURES
from gpu.architectures.common.tensor_map import STACKED, ModuleRole
from gpu.bench.machine.rig import Array, Arrays
from gpu.checkpoint.tensor_names import expert_modules, has_biases, tensor_map_of
from gpu.config import ModelConfig

VOCAB = 300
CONTEXT = 128
ENLARGED = ("attn.qkv", "embed", "head")
"""Dispatches whose weights enlarge their input, so that attention is peaked in places and flat in
others, and logits differ clearly. The others keep its size."""

TINY_CONFIG: dict[str, Any] = {
    "num_hidden_layers": 2,
    "hidden_size": 72,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 100,
    "vocab_size": VOCAB,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
"""config.json of every tiny model, where the `tiny_config` of its architecture says no other."""


def tiny_model(model_type: str) -> tuple[ModelConfig, Arrays]:
    """Return the configuration and the weights of an architecture's tiny model."""
    architecture = ARCHITECTURES[model_type]
    keys = architecture.config_keys
    settings = {keys.get(k, k): v for k, v in {**TINY_CONFIG, **architecture.tiny_config}.items()}
    with tempfile.TemporaryDirectory(prefix="tokenglass-tiny-") as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps({"model_type": model_type, **settings}), "utf-8")
        config = ModelConfig.from_folder(folder)
    return config, Arrays(dict(_Tensors(config).random()))


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor of a model, by its name in the checkpoint."""
    return dict(_Tensors(config).shapes())


class _Everything:
    def __contains__(self, name: object) -> bool:
        return True


class _Tensors:
    """The tensors of a model, by the roles that its architecture gives to its modules."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self.map = tensor_map_of(config, _Everything())

    def random(self) -> Iterator[tuple[str, Array]]:
        """Yield every tensor with random numbers; every call gives the same ones."""
        for module, shape, role in self._modules():
            yield self._weight(f"{module}.weight", shape, role.op)
            if has_biases(self.config, role):
                name = f"{module}.bias"
                yield name, _rng(name).normal(0, 0.3, _n_outputs(shape, role)).astype(np.float32)

    def shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield the name and the shape of every tensor."""
        for module, shape, role in self._modules():
            yield f"{module}.weight", shape
            if has_biases(self.config, role):
                yield f"{module}.bias", (_n_outputs(shape, role),)

    def _weight(self, name: str, shape: tuple[int, ...], op: str) -> tuple[str, Array]:
        rng = _rng(name)
        if len(shape) == 1:
            low, high = (-0.5, 0.5) if self.map.norm_plus_one else (0.5, 1.5)
            return name, rng.uniform(low, high, shape).astype(np.float32)
        gain = 2.0 if op in ENLARGED else 1.0
        return name, rng.normal(0, gain / shape[1] ** 0.5, shape).astype(np.float32)

    def _modules(self) -> Iterator[tuple[str, tuple[int, ...], ModuleRole]]:
        """Yield the name, the shape of the weight and the role of every module."""
        config, hidden = self.config, self.config.hidden_size
        for module, role in self.map.before.items():
            n = config.context if role.layout == "table" else config.vocab_size
            yield module, (n, hidden), role
        for module, role in self.map.after.items():
            if role.kind == "norm":
                yield module, (hidden,), role
            elif not config.tie_embeddings:
                yield module, (config.vocab_size, hidden), role
        for i in range(config.n_layers):
            for module, role in self.map.roles(i).items():
                if "*" in module:
                    end = module.rpartition(".")[2]
                    for of_one in expert_modules(config, i, role.op):
                        for each in of_one:
                            if each.endswith(f".{end}"):
                                yield each, self._matrix(i, module, role), role
                elif not module.endswith(STACKED):
                    name = f"{self.map.prefix}.{i}.{module}"
                    yield name, self._shape(i, module, role), role

    def _shape(self, i: int, module: str, role: ModuleRole) -> tuple[int, ...]:
        if role.kind != "norm":
            n, k = self._matrix(i, module, role)
            return (k, n) if role.layout == "transposed" else (n, k)
        if role.op != "attn.qk_norm_rope":
            return (self.config.hidden_size,)
        n_heads = self._heads(module) if self.map.qk_norm_all_heads else 1
        return (n_heads * self.config.head_dim,)

    def _matrix(self, i: int, module: str, role: ModuleRole) -> tuple[int, int]:
        """Return the outputs and inputs of a matrix."""
        config, moe = self.config, self.config.moe_of(i)
        hidden, d = config.hidden_size, config.head_dim
        is_fused = len(self.map.modules(i, role.kind, role.op)) == 1
        if role.op == "attn.qkv":
            n = config.n_heads + 2 * config.n_kv_heads if is_fused else self._heads(module)
            return n * d, hidden
        if role.op == "attn.out":
            return hidden, config.n_heads * d
        if role.op == "mlp.router":
            assert moe is not None
            return (1 if module.endswith("shared_expert_gate") else moe.n_experts), hidden
        inner = config.intermediate_size
        if moe is not None:
            shared = role.op.startswith("mlp.shared")
            inner = moe.shared_intermediate_size if shared else moe.intermediate_size
        if role.op.endswith("down"):
            return hidden, inner
        return inner * (2 if is_fused and role.op.endswith("gate_up") else 1), hidden

    def _heads(self, module: str) -> int:
        """Return the heads of a projection or a norm, by the letter its name begins with."""
        is_query = module.rpartition(".")[2].startswith("q")
        return self.config.n_heads if is_query else self.config.n_kv_heads


def _n_outputs(shape: tuple[int, ...], role: ModuleRole) -> int:
    return shape[-1] if role.layout == "transposed" else shape[0]


def _rng(name: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(name.encode()))
