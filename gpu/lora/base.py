"""The matrices of a model that adapters can change, by the names of their modules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpu.checkpoint.parts import names_of
from gpu.checkpoint.reader import WeightSource
from gpu.config import ModelConfig

OPS = ("attn.qkv", "attn.out", "mlp.gate_up", "mlp.up", "mlp.down")
"""The products that take adapters, after the name of their layer."""


@dataclass(frozen=True, slots=True)
class Linear:
    """A matrix of `n_out` outputs × `n_in` inputs in the layer with that number. `op`: the product
    that it belongs to, of `OPS`."""

    module: str
    layer: int
    op: str
    n_out: int
    n_in: int


def linears(config: ModelConfig, checkpoint: WeightSource) -> Iterator[Linear]:
    """Those of the layers, in the order of a step."""
    names = names_of(config, checkpoint)
    for layer in range(config.n_layers):
        for module, part in names.parts_of(layer).items():
            name = f"{names.layer}.{layer}.{module}"
            is_product = part.kind in ("attention", "mlp") and part.op in OPS
            if is_product and f"{name}.weight" in checkpoint:
                shape = checkpoint.shape(f"{name}.weight")
                n_out, n_in = shape[::-1] if part.lies == "transposed" else shape
                yield Linear(name, layer, part.op, n_out, n_in)


def module_in_base(module: str, config: ModelConfig, checkpoint: WeightSource) -> str:
    """The name in the base of a module that PEFT names as transformers does: the base may have been
    saved without the first word (the published GPT-2)."""
    layer = names_of(config, checkpoint).layer
    first, _, rest = module.partition(".")
    return rest if first == "transformer" and not layer.startswith("transformer.") else module
