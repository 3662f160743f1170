"""Form of an architecture in GGUF files: llama.cpp's names for its tensors
(gguf-py/gguf/tensor_mapping.py), what its converter (conversion/ of that project) does to the
weights, and what the metadata says of the hyperparameters."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpu.gguf.metadata import Metadata

Values = dict[str, Any]
"""Keys of config.json and their values."""

_IN_LAYER = re.compile(r"blk\.(\d{1,4})\.(\w+?)(?:\.(\d{1,4}))?\.(weight|bias)", re.ASCII)
_OUTSIDE = re.compile(r"(\w+)\.(weight|bias)", re.ASCII)


@dataclass(frozen=True, slots=True)
class CheckpointTensor:
    """The tensor of a checkpoint that a tensor of a GGUF file becomes; `*` in the module stands
    for the number of an expert, if one GGUF tensor holds all experts."""

    module: str
    suffix: str

    @property
    def name(self) -> str:
        return f"{self.module}.{self.suffix}"

    def name_of_expert(self, number: int) -> str:
        return self.name.replace("*", str(number))


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFormat:
    """GGUF files of one architecture.

    name          `general.architecture` of the file
    has_experts   tells files apart from those of another architecture with the same name
    read          reads the keys of config.json that are not the same for all architectures, see
                  `gpu.config.gguf`
    outside       GGUF names outside of the layers to modules of a checkpoint; layer: in a layer
    biased        GGUF names that may have a bias
    qk_permuted   rotary pairs of queries and keys are neighbours, not halves of a head apart
    """

    name: str
    read: Callable[[Metadata], Values]
    outside: Mapping[str, str]
    layer: Mapping[str, str]
    biased: frozenset[str] = frozenset()
    qk_permuted: bool = False
    has_experts: bool = False

    def find(self, tensor: str, prefix: str) -> CheckpointTensor | None:
        """Return the checkpoint tensor that a GGUF tensor becomes, for layers named `prefix`.N;
        None if the architecture has no such tensor. Older files hold experts one by one:
        `blk.0.ffn_gate.3.weight` is the fourth expert of `ffn_gate_exps`."""
        if match := _IN_LAYER.fullmatch(tensor):
            layer, module, expert, suffix = match.groups()
            known = self.layer.get(module if expert is None else f"{module}_exps")
            if known is None or (suffix == "bias" and module not in self.biased):
                return None
            if expert is not None:
                known = known.replace("*", str(int(expert)))
            return CheckpointTensor(f"{prefix}.{int(layer)}.{known}", suffix)
        if match := _OUTSIDE.fullmatch(tensor):
            module, suffix = match.groups()
            known = self.outside.get(module)
            if known is not None and (suffix == "weight" or module in self.biased):
                return CheckpointTensor(known, suffix)
        return None
