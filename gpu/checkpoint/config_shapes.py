"""Shapes of a model's tensors, from its config alone: no weight file is needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpu.architectures import ARCHITECTURES
from gpu.architectures.common.tensor_map import STACKED, Kind, ModuleRole, TensorMap
from gpu.checkpoint.tensor_names import has_biases
from gpu.config import ModelConfig

Shape = tuple[int, ...]


def config_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Return the shapes of the tensors of a model with this config, by name: as transformers saves
    it, which stacks the experts of a layer in one tensor and leaves a tied output head out."""
    layers = frozenset(config.expert_layers)
    tensors = replace(ARCHITECTURES[config.model_type].tensors, sparse_layers=layers)
    shapes: dict[str, Shape] = {}
    for module, role in tensors.before.items():
        shapes |= _with_bias(config, module, role, _outside(config, role))
    for i in range(config.n_layers):
        for module, (role, shape) in _layer(config, tensors, i).items():
            shapes |= _with_bias(config, f"{tensors.prefix}.{i}.{module}", role, shape)
    for module, role in tensors.after.items():
        if role.kind != "head" or not config.tie_embeddings:
            shapes |= _with_bias(config, module, role, _outside(config, role))
    return shapes


def qkv_rows(config: ModelConfig) -> tuple[int, int, int]:
    """Return the outputs of the projections to queries, keys and values."""
    kv = config.n_kv_heads * config.head_dim
    return config.n_heads * config.head_dim, kv, kv


def _with_bias(
    config: ModelConfig, module: str, role: ModuleRole, shape: Shape
) -> dict[str, Shape]:
    """Return the tensors of a module. `shape`: outputs × inputs."""
    if module.endswith(STACKED):
        return {module: shape}
    found = {f"{module}.weight": shape[::-1] if role.layout == "transposed" else shape}
    if has_biases(config, role):
        found[f"{module}.bias"] = shape[:1]
    return found


def _outside(config: ModelConfig, role: ModuleRole) -> Shape:
    if role.kind == "norm":
        return (config.hidden_size,)
    n = config.context if role.layout == "table" else config.vocab_size
    return n, config.hidden_size


def _layer(
    config: ModelConfig, tensors: TensorMap, i: int
) -> dict[str, tuple[ModuleRole, Shape]]:
    """Return the modules of a layer and their shapes, without those that are other names of the
    same matrices."""
    groups: dict[tuple[Kind, str], dict[str, ModuleRole]] = {}
    for module, role in tensors.roles(i).items():
        if "*" not in module:
            groups.setdefault((role.kind, role.op), {})[module] = role
    found = {}
    for (kind, op), roles in groups.items():
        modules = list(roles) if op != "mlp.router" or kind == "norm" else _routers(config, roles)
        shapes = (
            _norms(config, tensors, modules)
            if kind == "norm"
            else _matrices(config, op, modules)
        )
        found |= {m: (roles[m], s) for m, s in zip(modules, shapes, strict=True)}
    return found


def _routers(config: ModelConfig, modules: Sequence[str]) -> list[str]:
    """Return the router, by the name that newer files have, and the gate of a shared expert."""
    shared = [module for module in modules if module.endswith("shared_expert_gate")]
    has_shared = bool(config.experts and config.experts.shared_intermediate_size)
    return [[m for m in modules if m not in shared][-1], *(shared if has_shared else ())]


def _norms(config: ModelConfig, tensors: TensorMap, modules: Sequence[str]) -> list[Shape]:
    if len(modules) == 1:
        return [(config.hidden_size,)]
    heads = (config.n_heads, config.n_kv_heads) if tensors.qk_norm_all_heads else (1, 1)
    return [(n * config.head_dim,) for n in heads]


def _matrices(config: ModelConfig, op: str, modules: Sequence[str]) -> list[Shape]:
    """Return the shapes of the matrices that the dispatch `op` reads."""
    hidden, inner, moe = config.hidden_size, config.intermediate_size, config.experts
    if op == "attn.qkv":
        rows = qkv_rows(config)
        return [(n, hidden) for n in (rows if len(modules) == 3 else (sum(rows),))]
    if op == "attn.out":
        return [(hidden, qkv_rows(config)[0])]
    if moe and op == "mlp.router":
        return [(n, hidden) for n in (moe.n_experts, 1)[: len(modules)]]
    experts: Shape = ()
    if moe and op.startswith("mlp.experts."):
        inner, experts = moe.intermediate_size, (moe.n_experts,)
    elif moe and op.startswith("mlp.shared."):
        inner = moe.shared_intermediate_size
    if op.endswith("down"):
        return [(*experts, hidden, inner)]
    halves = 2 if op.endswith("gate_up") and len(modules) == 1 else 1
    return [(*experts, halves * inner, hidden)] * len(modules)
