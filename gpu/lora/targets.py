"""The modules of a model that LoRA adapters can change, by their names in the checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpu.checkpoint.reader import Checkpoint, WeightSource
from gpu.checkpoint.tensor_names import expert_modules, tensor_map_of
from gpu.config import ModelConfig

ROUTER = "mlp.router"
EXPERT_OPS = {"mlp.experts.gate_up": "gate_up_proj", "mlp.experts.down": "down_proj"}
"""Dispatches of experts, and what newer transformers names the parameter of a layer's experts."""
MOE_MODULES = ("mlp", "block_sparse_moe")
"""Names of a mixture-of-experts module in transformers; the second is Mixtral's older one."""


@dataclass(frozen=True, slots=True)
class LoraTarget:
    """A matrix of `n_out` outputs × `n_in` inputs in a layer. `op`: the dispatch that reads it;
    `parameter`: the one that holds it where all experts of a layer are one tensor, "" of others."""

    module: str
    layer: int
    op: str
    n_out: int
    n_in: int
    parameter: str = ""

    @property
    def is_optional(self) -> bool:
        """True if adapters may leave it out: newer transformers has no module of it."""
        return self.op in EXPERT_OPS or (self.op == ROUTER and self.module.endswith(".gate"))


def lora_targets(config: ModelConfig, checkpoint: WeightSource) -> Iterator[LoraTarget]:
    """Yield every matrix that LoRA can target, in execution order. Experts have the names of
    modules of their own, however the checkpoint holds them."""
    tensors = tensor_map_of(config, checkpoint)
    for layer in range(config.n_layers):
        for module, role in tensors.roles(layer).items():
            name = f"{tensors.prefix}.{layer}.{module}"
            is_matrix = role.kind in ("attention", "mlp") and not role.routed
            if is_matrix and f"{name}.weight" in checkpoint:
                shape = checkpoint.shape(f"{name}.weight")
                n_out, n_in = shape[::-1] if role.layout == "transposed" else shape
                yield LoraTarget(name, layer, role.op, n_out, n_in)
        yield from _expert_targets(config, layer)


def _expert_targets(config: ModelConfig, layer: int) -> Iterator[LoraTarget]:
    moe, hidden = config.moe_of(layer), config.hidden_size
    if moe is None:
        return
    sizes = (moe.intermediate_size, hidden), (hidden, moe.intermediate_size)
    for (op, parameter), (n_out, n_in) in zip(EXPERT_OPS.items(), sizes, strict=True):
        for modules in expert_modules(config, layer, op):
            for module in modules:
                mlp = module.partition(".experts.")[0].replace(MOE_MODULES[1], MOE_MODULES[0])
                yield LoraTarget(module, layer, op, n_out, n_in, f"{mlp}.experts.{parameter}")


def lora_targets_of(model: Path) -> tuple[LoraTarget, ...]:
    """Return every matrix of the model in a folder or GGUF file that LoRA can target. Raises
    ModelError."""
    return tuple(lora_targets(ModelConfig.from_folder(model), Checkpoint.open(model)))


def module_in_base(module: str, config: ModelConfig, checkpoint: WeightSource) -> str:
    """Return the base's name of a module that PEFT names as transformers does. The base may have
    been saved without the first word (the published GPT-2), or with a router's older or newer
    name."""
    prefix = tensor_map_of(config, checkpoint).prefix
    first, _, rest = module.partition(".")
    if first == "transformer" and not prefix.startswith("transformer."):
        return rest
    layer, mlp, end = module.rsplit(".", 2) if module.count(".") > 1 else ("", "", "")
    if end == "gate" and mlp in MOE_MODULES:
        routers = (f"{layer}.{mlp}.gate" for mlp in MOE_MODULES)
        return next((name for name in routers if f"{name}.weight" in checkpoint), module)
    return module
