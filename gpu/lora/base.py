"""The matrices of a model that adapters can change, by the names of their modules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpu.checkpoint.parts import expert_modules, names_of
from gpu.checkpoint.reader import WeightSource
from gpu.config import ModelConfig

ROUTER = "mlp.router"
OPS = (
    *("attn.qkv", "attn.out", "mlp.gate_up", "mlp.up", "mlp.down"),
    *(ROUTER, "mlp.shared.gate_up", "mlp.shared.down"),
)
"""The products that take adapters, after the name of their layer."""
EXPERT_OPS = {"mlp.experts.gate_up": "gate_up_proj", "mlp.experts.down": "down_proj"}
"""Those of the experts, and what newer transformers calls the parameter of all in a layer."""
MIXTURES = ("mlp", "block_sparse_moe")
"""What transformers calls a mixture, and what it called Mixtral's before."""


@dataclass(frozen=True, slots=True)
class Linear:
    """A matrix of `n_out` outputs × `n_in` inputs in the layer with that number. `op`: the product
    that it belongs to, of `OPS` or `EXPERT_OPS`; `parameter`: what has it where all experts of a
    layer are one, "" of others."""

    module: str
    layer: int
    op: str
    n_out: int
    n_in: int
    parameter: str = ""

    @property
    def is_leavable(self) -> bool:
        """Newer transformers has no module of it, so that adapters of modules leave it out."""
        return self.op in EXPERT_OPS or (self.op == ROUTER and self.module.endswith(".gate"))


def linears(config: ModelConfig, checkpoint: WeightSource) -> Iterator[Linear]:
    """Those of the layers, in the order of a step; of each expert by the names they have where
    every expert has its own, however the checkpoint has them."""
    names = names_of(config, checkpoint)
    for layer in range(config.n_layers):
        for module, part in names.parts_of(layer).items():
            name = f"{names.layer}.{layer}.{module}"
            is_product = part.kind in ("attention", "mlp") and part.op in OPS
            if is_product and f"{name}.weight" in checkpoint:
                shape = checkpoint.shape(f"{name}.weight")
                n_out, n_in = shape[::-1] if part.lies == "transposed" else shape
                yield Linear(name, layer, part.op, n_out, n_in)
        yield from _of_experts(config, layer)


def _of_experts(config: ModelConfig, layer: int) -> Iterator[Linear]:
    experts, hidden = config.experts_of(layer), config.hidden_size
    if experts is None:
        return
    sizes = (experts.width, hidden), (hidden, experts.width)
    for (op, parameter), (n_out, n_in) in zip(EXPERT_OPS.items(), sizes, strict=True):
        for modules in expert_modules(config, layer, op):
            for module in modules:
                mlp = module.partition(".experts.")[0].replace(MIXTURES[1], MIXTURES[0])
                yield Linear(module, layer, op, n_out, n_in, f"{mlp}.experts.{parameter}")


def module_in_base(module: str, config: ModelConfig, checkpoint: WeightSource) -> str:
    """The name in the base of a module that PEFT names as transformers does: the base may have been
    saved without the first word (the published GPT-2), or a router by its older or newer name."""
    layer = names_of(config, checkpoint).layer
    first, _, rest = module.partition(".")
    if first == "transformer" and not layer.startswith("transformer."):
        return rest
    of_layer, mlp, end = module.rsplit(".", 2) if module.count(".") > 1 else ("", "", "")
    if end == "gate" and mlp in MIXTURES:
        routers = (f"{of_layer}.{mlp}.gate" for mlp in MIXTURES)
        return next((name for name in routers if f"{name}.weight" in checkpoint), module)
    return module
