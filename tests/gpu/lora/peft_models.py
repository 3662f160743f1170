"""LoRA adapters made and saved by PEFT, and transformers' models with PEFT's adapters applied: the
reference for this project's adapters."""

from __future__ import annotations

import atexit
import copy
import shutil
import tempfile
import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import peft
import torch
from peft.tuners.lora.layer import LoraLayer

from tests.gpu.lora.random_loras import KINDS, base, ends_of, reference
from tests.gpu.models import random_models

EXPERTS = ("mlp.experts.gate_up_proj", "mlp.experts.down_proj")
ROUTER = "mlp.gate.weight"
WAYS: dict[str, dict[str, Any]] = {
    "all-linear": {"target_modules": "all-linear"},
    "pattern": {"target_modules": r".*layers\.(0|2)\.(self_attn\.[qk]|mlp\.down)_proj"},
    "long-pattern": {
        "target_modules": r"(?:.*?(?:self_attn).*?(?:q|v).*?_proj.*?)|(?:\bmodel\.layers\.[\d]{1,}"
        r"\.(?:mlp)\.(?:(?:up_proj)))",
        "rank_pattern": {r"(?:\w+\.)*v_(?:\w)*": 3},
    },
    "layer": {"target_modules": ["v_proj", "up_proj"], "layers_to_transform": [1]},
    "excluded": {
        "target_modules": ["o_proj", "gate_proj"],
        "exclude_modules": r".*layers\.1\..*",
    },
    "half": {"target_modules": ["q_proj", "down_proj"], "saved_as": torch.bfloat16},
}
"""Ways to select modules of a Llama for an adapter; "half" is saved as bfloat16."""
OF_EXPERTS: dict[str, dict[str, Any]] = {
    "experts": {"target_modules": [], "target_parameters": [*EXPERTS]},
    "router": {
        "target_modules": ["q_proj", "o_proj"],
        "target_parameters": [*EXPERTS, ROUTER],
        "rank_pattern": {r".*\.experts\.down_proj": 3, "o_proj": 4},
        "alpha_pattern": {r".*\.gate\.weight": 5.0},
    },
    "rooted": {
        "target_modules": ["v_proj"],
        "target_parameters": [*EXPERTS, ROUTER],
        "use_rslora": True,
    },
}
"""Adapters of a mixture of experts: of the parameters of all experts of a layer."""


@cache
def saved(name: str, kind: str, seed: int = 0) -> Path:
    """Return the folder of an adapter of the base `name` with random numbers, deleted at exit.

    `kind`: one of `random_loras.KINDS`, `WAYS` or `OF_EXPERTS`.
    """
    path = Path(tempfile.mkdtemp(prefix=f"peft-{kind}-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    settings = {"r": 2, "lora_alpha": 3, **{**KINDS, **WAYS, **OF_EXPERTS}[kind]}
    if kind in KINDS:
        settings["target_modules"] = ends_of(base(name), kind)
    dtype = settings.pop("saved_as", torch.float32)
    model = copy.deepcopy(reference(name).model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a pattern may name what this architecture lacks
        adapted = peft.get_peft_model(model, peft.LoraConfig(**settings))
    _randomise(adapted, torch.Generator().manual_seed(seed))
    adapted.to(dtype).save_pretrained(path)
    return path


def applied(name: str, strengths: Mapping[Path, float]) -> random_models.Reference:
    """Return transformers' model of a base with PEFT's adapters of these folders, each at its
    strength."""
    found = copy.copy(reference(name))
    found.model = copy.deepcopy(found.model)
    names = {f"a{i}": path for i, path in enumerate(strengths)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapted = peft.PeftModel(
            found.model, peft.PeftConfig.from_pretrained(names["a0"]), adapter_name="a0"
        )
        for given, path in names.items():
            adapted.load_adapter(path, adapter_name=given)
        adapted.base_model.set_adapter(list(names))
    for module in adapted.modules():
        if isinstance(module, LoraLayer):
            for given in module.scaling.keys() & names.keys():
                module.set_scale(given, strengths[names[given]])
    found.model = adapted.eval()
    return found


@torch.no_grad()
def _randomise(adapted: torch.nn.Module, generator: torch.Generator) -> None:
    """Fill in numbers that change logits strongly: PEFT initialises adapters to change nothing."""
    for module in adapted.modules():
        if isinstance(module, LoraLayer):
            rank = module.r["default"]
            a, b = module.lora_A["default"].weight, module.lora_B["default"].weight
            a.normal_(0, a.shape[1] ** -0.5, generator=generator)
            b.normal_(0, 0.4 * rank**-0.5, generator=generator)
