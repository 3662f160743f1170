"""Shapes of a model's tensors, from its config alone, without a weight file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from gpu.architectures import ARCHITECTURES
from gpu.architectures.common.tensor_map import STACKED, Kind, ModuleRole, TensorMap
from gpu.checkpoint.tensor_names import has_biases
from gpu.config import ModelConfig

Shape = tuple[int, ...]
Module = tuple[str, ModuleRole, Shape]
"""Name, role, and outputs × inputs of the weight, or the length of a norm."""


def config_shapes(config: ModelConfig, *, stacked: bool = True) -> dict[str, Shape]:
    """Return the shapes of the tensors of a model with this config, by name, as transformers saves
    it: without a tied output head. `stacked`: the experts of a layer are one tensor, as its newer
    versions save them."""
    return {
        name: found
        for module, role, shape in config_modules(config, stacked=stacked)
        for name, found in _tensors(config, module, role, shape)
    }


def config_modules(config: ModelConfig, *, stacked: bool = True) -> Iterator[Module]:
    """Yield the modules of a model with this config; see `config_shapes`."""
    layers = frozenset(config.expert_layers)
    tensors = replace(ARCHITECTURES[config.model_type].tensors, sparse_layers=layers)
    for module, role in tensors.before.items():
        yield module, role, _outside(config, role)
    for i in range(config.n_layers):
        yield from _layer(config, tensors, i, stacked)
    for module, role in tensors.after.items():
        if role.kind != "head" or not config.tie_embeddings:
            yield module, role, _outside(config, role)


def qkv_rows(config: ModelConfig) -> tuple[int, int, int]:
    """Return the number of outputs of the Q, K and V projections."""
    kv = config.n_kv_heads * config.head_dim
    return config.n_heads * config.head_dim, kv, kv


def _tensors(
    config: ModelConfig, module: str, role: ModuleRole, shape: Shape
) -> Iterator[tuple[str, Shape]]:
    if module.endswith(STACKED):
        yield module, shape
        return
    yield f"{module}.weight", shape[::-1] if role.layout == "transposed" else shape
    if has_biases(config, role):
        yield f"{module}.bias", shape[:1]


def _outside(config: ModelConfig, role: ModuleRole) -> Shape:
    if role.kind == "norm":
        return (config.hidden_size,)
    n = config.context if role.layout == "table" else config.vocab_size
    return n, config.hidden_size


def _layer(config: ModelConfig, tensors: TensorMap, i: int, stacked: bool) -> Iterator[Module]:
    """Yield the modules of a layer, each matrix under one of its names only."""
    groups: dict[tuple[Kind, str], dict[str, ModuleRole]] = {}
    for module, role in tensors.roles(i).items():
        if not role.routed or stacked == module.endswith(STACKED):
            groups.setdefault((role.kind, role.op), {})[module] = role
    for (kind, op), roles in groups.items():
        modules = _used(config, roles)
        shapes = (
            _norms(config, tensors, modules) if kind == "norm" else _matrices(config, op, modules)
        )
        for module, shape in zip(modules, shapes, strict=True):
            for name in _of_each_expert(config, module):
                yield f"{tensors.prefix}.{i}.{name}", roles[module], shape


def _of_each_expert(config: ModelConfig, module: str) -> list[str]:
    n = config.experts.n_experts if config.experts and "*" in module else 0
    return [module.replace("*", str(e)) for e in range(n)] if n else [module]


def _used(config: ModelConfig, roles: Mapping[str, ModuleRole]) -> list[str]:
    """Return the modules that the model has of these: of routers one, by the name that newer files
    have, and those of a shared expert if there is one."""
    shared = [module for module in roles if "shared_expert" in module]
    own = [module for module in roles if module not in shared]
    if own and roles[own[-1]].op == "mlp.router" and roles[own[-1]].kind == "mlp":
        own = own[-1:]
    has_shared = bool(config.experts and config.experts.shared_intermediate_size)
    return [*own, *(shared if has_shared else ())]


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
        inner = moe.intermediate_size
        experts = (moe.n_experts,) if modules[0].endswith(STACKED) else ()
    elif moe and op.startswith("mlp.shared."):
        inner = moe.shared_intermediate_size
    if op.endswith("down"):
        return [(*experts, hidden, inner)]
    halves = 2 if op.endswith("gate_up") and len(modules) == 1 else 1
    return [(*experts, halves * inner, hidden)] * len(modules)
