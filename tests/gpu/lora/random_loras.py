"""LoRA adapters with random numbers in PEFT's layout, and models that they are merged into.

They cover layouts that current PEFT does not write (each expert's matrices apart), and files to
damage. Adapters made by PEFT itself, the reference for all others, are in `peft_models`. The merge
is W += strength · (α / r) · B A, as PEFT documents it.
"""

from __future__ import annotations

import atexit
import copy
import json
import math
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file

from gpu.checkpoint.reader import Checkpoint
from gpu.checkpoint.safetensors_files import open_safetensors
from tests.gpu.models import random_llama, random_models

LLAMA = "derived_head"
"""The Llama of the tests, with grouped-query attention."""

ATTENTION = ("q_proj", "v_proj")
KINDS: dict[str, dict[str, Any]] = {
    "all": {"r": 3, "lora_alpha": 6},
    "attention": {"r": 5, "lora_alpha": 3, "use_rslora": True},
    "patterns": {
        "r": 2,
        "lora_alpha": 4,
        "rank_pattern": {"down_proj": 7, r"layers\.1\.self_attn\.k_proj": 1},
        "alpha_pattern": {"down_proj": 21, "k_proj": 0.5},
    },
}
"""Settings besides the modules: "attention" adapts queries and values alone if the model has them
apart, the others adapt all."""

MODULES = (
    *("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    *("qkv_proj", "gate_up_proj", "c_attn", "c_proj", "c_fc"),
    *("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"),
    *("w1", "w2", "w3", "gate", "shared_expert_gate"),
)
EXPERT = re.compile(r"(.*)\.experts\.(\d+)\.(\w+)")
PARAMETERS = {"gate_up_proj": 3, "down_proj": 2}
"""Parameters of all experts of a layer, and the ranks of `fused` adapters."""
PARTS = {
    **dict.fromkeys(("gate_proj", "w1"), ("gate_up_proj", 0)),
    **dict.fromkeys(("up_proj", "w3"), ("gate_up_proj", 1)),
    **dict.fromkeys(("down_proj", "w2"), ("down_proj", 0)),
}
"""Parameter of each module of an expert, and its half of it."""


def base(name: str) -> Path:
    return random_llama.folder(name) if name == LLAMA else random_models.folder(name)


@cache
def reference(name: str, dtype: str = "f32") -> random_models.Reference:
    return random_models.Reference(base(name), dtype)


@cache
def folder(name: str, kind: str, seed: int = 0) -> Path:
    """Return the folder of an adapter of a base, written on first use, deleted at exit."""
    return of_model(base(name), kind, seed)


def of_model(model: Path, kind: str, seed: int = 0) -> Path:
    """Return the folder of an adapter for a model in a folder."""
    path = Path(tempfile.mkdtemp(prefix=f"lora-{kind}-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    checkpoint = Checkpoint.open(model)
    ends = _ends(checkpoint, kind)
    config = {"peft_type": "LORA", "bias": "none", "target_modules": ends, **KINDS[kind]}
    rng = np.random.default_rng(seed)
    tensors: dict[str, Any] = {}
    for module in _modules(checkpoint, ends):
        n_out, n_in = _shape(checkpoint, module)
        rank, _ = rank_and_scale(config, module)
        key = f"base_model.model.{module}"
        a = rng.normal(0, n_in**-0.5, (rank, n_in))
        b = rng.normal(0, 0.4 * rank**-0.5, (n_out, rank))
        tensors[f"{key}.lora_A.weight"] = a.astype(np.float32)
        tensors[f"{key}.lora_B.weight"] = b.astype(np.float32)
    return write(path, config, tensors)


@cache
def fused(name: str, seed: int = 0) -> Path:
    """Return the folder of an adapter of the parameters of experts, as PEFT saves it since 0.19.1:
    the inner one of two parameters of a module is called its base_layer."""
    path = Path(tempfile.mkdtemp(prefix="lora-fused-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    config = {
        "peft_type": "LORA", "r": 2, "lora_alpha": 3, "peft_version": "0.21.2",
        "target_parameters": [f"mlp.experts.{end}" for end in PARAMETERS],
        "rank_pattern": dict(PARAMETERS),
    }  # fmt: skip
    rng, tensors = np.random.default_rng(seed), {}
    for parameter, values in reference(name).model.named_parameters():
        module, _, end = parameter.rpartition(".")
        if module.endswith(".experts"):
            (n, n_out, n_in), rank = values.shape, PARAMETERS[end]
            inner = ".base_layer" if end == "gate_up_proj" else ""
            key = f"base_model.model.{module}{inner}"
            a = rng.normal(0, n_in**-0.5, (n * rank, n_in))
            b = rng.normal(0, 0.6 * rank**-0.5, (n_out, rank * n))
            tensors[f"{key}.lora_A.weight"] = a.astype(np.float32)
            tensors[f"{key}.lora_B.weight"] = b.astype(np.float32)
    return write(path, config, tensors)


def write(path: Path, config: Mapping[str, Any], tensors: Mapping[str, Any]) -> Path:
    (path / "adapter_config.json").write_text(json.dumps(config))
    save_file(dict(tensors), path / "adapter_model.safetensors")
    return path


def rank_and_scale(config: Mapping[str, Any], module: str) -> tuple[int, float]:
    """Return rank and scale of a module as `LoraModel._create_and_replace` of PEFT finds them."""

    def of(patterns: Mapping[str, Any], default: Any) -> Any:
        keys = (key for key in patterns if re.match(rf"(.*\.)?({key})$", module))
        return patterns.get(next(keys, ""), default)

    rank = of(config.get("rank_pattern", {}), config["r"])
    alpha = of(config.get("alpha_pattern", {}), config["lora_alpha"])
    return rank, alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


@torch.no_grad()
def merged(
    name: str, strengths: Mapping[Path, float], dtype: str = "f32"
) -> random_models.Reference:
    """Return transformers' model with adapters merged at these strengths into a base stored as
    `dtype`."""
    found = copy.copy(reference(name, dtype))
    found.model = copy.deepcopy(found.model)
    for path, strength in strengths.items():
        config = json.loads((path / "adapter_config.json").read_text())
        tensors = Checkpoint(path, open_safetensors(path / "adapter_model.safetensors"))
        for key in tensors.names():
            if key.endswith("lora_A.weight"):
                module = key.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
                a = torch.from_numpy(tensors.read_f32(key)).double()
                b = torch.from_numpy(tensors.read_f32(key.replace("lora_A", "lora_B"))).double()
                if config.get("target_parameters"):
                    _merge_all(
                        found.model, module.removesuffix(".base_layer"), config, a, b, strength
                    )
                else:
                    _, scale = rank_and_scale(config, module)
                    weight = _weight(found.model, module)
                    delta = strength * scale * b @ a
                    weight += (delta.T if ".c_" in module else delta).to(weight.dtype)
    return found


def _weight(model: torch.nn.Module, module: str) -> torch.Tensor:
    """Return a module's weight in the model, which may stack the experts of a layer."""
    module = module.replace("block_sparse_moe", "mlp")
    if expert := EXPERT.fullmatch(module):
        layer, number, end = expert.groups()
        parameter, half = PARTS[end]
        of_expert: torch.Tensor = getattr(model.get_submodule(f"{layer}.experts"), parameter)
        of_expert = of_expert[int(number)]
        return of_expert.chunk(2)[half] if parameter == "gate_up_proj" else of_expert
    weight: torch.Tensor = model.get_submodule(module).weight  # type: ignore[assignment]
    return weight


def _merge_all(
    model: torch.nn.Module, module: str, config: Mapping[str, Any], a: Any, b: Any, strength: float
) -> None:
    """Merge an adapter of all experts as `ParamWrapper.get_delta_weight` of PEFT does."""
    for end in PARAMETERS:
        weight: torch.Tensor = getattr(model.get_submodule(module), end)  # type: ignore[assignment]
        n, n_out, n_in = weight.shape
        rank, scale = rank_and_scale(config, f"{module}.{end}")
        if (a.shape, b.shape) == ((n * rank, n_in), (n_out, rank * n)):
            of_each = b.reshape(n_out, rank, n), a.reshape(n, rank, n_in)
            weight += (strength * scale * torch.einsum("ore,eri->eoi", *of_each)).to(weight.dtype)


def ends_of(model: Path, kind: str) -> list[str]:
    """Return the last names of the modules that an adapter of this kind changes in a model's
    folder."""
    return _ends(Checkpoint.open(model), kind)


def _ends(model: Checkpoint, kind: str) -> list[str]:
    there = {name.split(".")[-2] for name in model.names() if name.endswith(".weight")}
    wanted: Sequence[str] = [end for end in MODULES if end in there]
    few = [end for end in wanted if end in ATTENTION]
    return few if kind == "attention" and few else list(wanted)


def _modules(model: Checkpoint, ends: Sequence[str]) -> list[str]:
    names = [name.removesuffix(".weight") for name in model.names() if name.endswith(".weight")]
    return [name for name in names if name.split(".")[-1] in ends]


def _shape(model: Checkpoint, module: str) -> tuple[int, int]:
    rows, columns = model.shape(f"{module}.weight")
    return (columns, rows) if ".c_" in module else (rows, columns)
