"""Tiny models of every architecture with random weights, made in memory."""

from __future__ import annotations

import json
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gpu.architectures.common.tensor_map import STACKED, ModuleRole
from gpu.bench.machine.rig import Array, Arrays
from gpu.checkpoint.tensor_names import expert_modules, has_biases, tensor_map_of
from gpu.config import ModelConfig

VOCAB = 300
CONTEXT = 128
ENLARGED = ("attn.qkv", "embed", "head")
"""Dispatches whose weights enlarge their input, so that attention is peaked in places and flat in
others, and logits differ clearly. The others keep its size."""

Settings = dict[str, Any]


def _sized(layers: int, hidden: int, heads: int, kv_heads: int, inner: int) -> Settings:
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": inner,
    }


MODELS: dict[str, Settings] = {
    "llama": _sized(2, 96, 6, 2, 100) | {"head_dim": 16},
    "qwen2": _sized(2, 72, 6, 2, 100),
    "mistral": _sized(2, 48, 4, 1, 90) | {"sliding_window": 7},
    "smollm3": _sized(5, 60, 3, 1, 84),
    "granite": _sized(3, 56, 7, 7, 68)
    | {"embedding_multiplier": 12.0, "residual_multiplier": 0.22}
    | {"attention_multiplier": 0.2, "logits_scaling": 8.0, "tie_word_embeddings": True},
    "qwen3": _sized(2, 72, 6, 2, 100) | {"head_dim": 20},
    "olmo2": _sized(3, 60, 5, 1, 76),
    "phi3": _sized(2, 72, 6, 3, 100) | {"sliding_window": 21},
    "gemma2": _sized(3, 56, 4, 2, 90)
    | {"head_dim": 12, "sliding_window": 9, "query_pre_attn_scalar": 12},
    "gemma3_text": _sized(7, 48, 4, 1, 60)
    | {"head_dim": 12, "sliding_window": 17, "query_pre_attn_scalar": 12},
    "gpt2": {"n_layer": 2, "n_embd": 60, "n_head": 5, "n_positions": CONTEXT},
    "gpt_neox": _sized(2, 96, 6, 6, 130) | {"hidden_act": "gelu"},
    "mixtral": _sized(2, 48, 4, 2, 40) | {"num_local_experts": 8, "num_experts_per_tok": 2},
    "qwen2_moe": _sized(3, 72, 6, 2, 100)
    | {"num_experts": 10, "num_experts_per_tok": 4, "moe_intermediate_size": 20}
    | {"shared_expert_intermediate_size": 52, "mlp_only_layers": [1]},
    "qwen3_moe": _sized(4, 56, 7, 7, 90)
    | {"num_experts": 16, "num_experts_per_tok": 8, "moe_intermediate_size": 24}
    | {"norm_topk_prob": True, "decoder_sparse_step": 2, "head_dim": 8},
    "olmoe": _sized(2, 60, 5, 1, 44) | {"num_experts": 12, "num_experts_per_tok": 3},
}
"""config.json of each architecture beside `COMMON`: odd sizes where they are allowed."""
COMMON: Settings = {
    "vocab_size": VOCAB,
    "max_position_embeddings": CONTEXT,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
GELU = {"gemma2": "gelu_pytorch_tanh", "gemma3_text": "gelu_pytorch_tanh"}


def tiny_model(model_type: str) -> tuple[ModelConfig, Arrays]:
    """Return the configuration and the weights of an architecture's tiny model."""
    settings = {**COMMON, "model_type": model_type, **MODELS[model_type]}
    if model_type in GELU:
        settings |= {"hidden_act": GELU[model_type], "hidden_activation": GELU[model_type]}
    if model_type == "gpt2":
        settings = {k: v for k, v in settings.items() if k not in COMMON} | {"vocab_size": VOCAB}
    with tempfile.TemporaryDirectory(prefix="tokenglass-tiny-") as folder:
        (Path(folder) / "config.json").write_text(json.dumps(settings), "utf-8")
        config = ModelConfig.from_folder(folder)
    return config, Arrays(dict(_Tensors(config).random()))


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
                n = shape[-1] if role.layout == "transposed" else shape[0]
                name = f"{module}.bias"
                yield name, _rng(name).normal(0, 0.3, n).astype(np.float32)

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


def _rng(name: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(name.encode()))
