"""What a model folder says about its model: `config.json` and `generation_config.json`.

Only what the engine can run exactly is accepted; everything else is refused by name, because a
setting that is silently ignored gives text that is quietly wrong.
"""

from gpu.config.experts import Experts
from gpu.config.families import MODEL_TYPES
from gpu.config.generation import GenerationDefaults
from gpu.config.model import ModelConfig
from gpu.config.rope import RopeConfig
from gpu.config.traits import Traits

__all__ = ["MODEL_TYPES", "Experts", "GenerationDefaults", "ModelConfig", "RopeConfig", "Traits"]
