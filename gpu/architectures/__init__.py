"""Architectures that can be run: one data file each, named after the `model_type` of config.json.

The files are found, not listed. Each holds `ARCHITECTURE`; `gpu.models.registry` has the forward
pass. Encoders, which give vectors of texts, and encoder-decoders, which write one text about
another, are apart from the architectures that continue texts.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from types import ModuleType

from gpu.architectures import encoder_decoders, encoders
from gpu.architectures.common.architecture import Architecture
from gpu.architectures.common.gguf_format import GgufFormat
from gpu.architectures.common.gguf_readers import MAX_EXPERTS
from gpu.errors import ModelError
from gpu.files.json_object import shown
from gpu.gguf.file import GgufFile
from gpu.gguf.metadata import Metadata


def find_architectures(package: ModuleType | None = None) -> dict[str, Architecture]:
    """Return the architectures of a package's files by `model_type`, in alphabetical order; None:
    of this package."""
    path, prefix = (package.__path__, package.__name__) if package else (__path__, __name__)
    names = sorted(module.name for module in pkgutil.iter_modules(path) if not module.ispkg)
    found: dict[str, Architecture] = {}
    for name in names:
        architecture = import_module(f"{prefix}.{name}").ARCHITECTURE
        kind = architecture.model_type
        assert kind.replace("-", "_") == name, f"{name}.py must be named after its model_type"
        found[kind] = architecture
    return found


ARCHITECTURES = find_architectures()
ENCODERS = find_architectures(encoders)
ENCODER_DECODERS = find_architectures(encoder_decoders)


def expect_torch_runs(model_type: str) -> None:
    """Raise ModelError for an architecture that `--backend torch` does not run."""
    if not ARCHITECTURES[model_type].torch:
        supported = (name for name, architecture in ARCHITECTURES.items() if architecture.torch)
        raise ModelError(
            f"--backend torch runs {', '.join(supported)} models, but this is {model_type}; use "
            "--backend wgpu, which needs no GPU where a software device is installed"
        )


def gguf_architecture(file: GgufFile) -> tuple[Architecture, GgufFormat]:
    """Return the architecture of a GGUF file. Raises ModelError for one that is not supported."""
    name = file.values.get("general.architecture")
    known = [(found, found.gguf) for found in ARCHITECTURES.values() if found.gguf]
    named = [(found, gguf) for found, gguf in known if isinstance(name, str) and gguf.name == name]
    if not named:
        supported = dict.fromkeys(gguf.name for _, gguf in known)
        raise ModelError(
            f"{file.path}: architecture {shown(name)} is not supported in a GGUF file; "
            f"supported: {', '.join(supported)}"
        )
    if len(named) > 1:
        has_experts = bool(Metadata(file).integer("expert_count", 0, MAX_EXPERTS, 0))
        named = [(found, gguf) for found, gguf in named if gguf.has_experts == has_experts]
    return named[0]


__all__ = [
    "ARCHITECTURES",
    "ENCODERS",
    "ENCODER_DECODERS",
    "Architecture",
    "expect_torch_runs",
    "find_architectures",
    "gguf_architecture",
]
