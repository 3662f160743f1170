"""The configuration of a model: `config.json` and `generation_config.json`, or the metadata of a
GGUF file.

Only what the engine can run exactly is accepted; everything else is refused by name, because an
ignored setting gives text that is wrong without a sign of it.
"""

from gpu.architectures import ARCHITECTURES
from gpu.architectures.common.moe import MoeConfig
from gpu.architectures.common.rope import RopeConfig
from gpu.config.generation import GenerationDefaults
from gpu.config.model import ModelConfig
from gpu.config.stage import Stage, cut_stages

MODEL_TYPES = tuple(ARCHITECTURES)

__all__ = [
    "MODEL_TYPES",
    "GenerationDefaults",
    "ModelConfig",
    "MoeConfig",
    "RopeConfig",
    "Stage",
    "cut_stages",
]
