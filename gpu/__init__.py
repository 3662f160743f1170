"""The engine: real checkpoints through WGSL. This is its public face.

from gpu import Engine, SamplingParams

engine = Engine.load("path/to/model")
run = engine.generate(engine.tokenizer.encode("Once upon a time"), SamplingParams(seed=7))
for token in run:
    print(token.text, end="")
"""

from gpu.config import GenerationDefaults, ModelConfig
from gpu.engine import Engine, EngineInfo, Run
from gpu.errors import (
    ContextExceeded,
    DeviceError,
    EngineClosed,
    EngineError,
    InvalidRequest,
    ModelError,
    QueueFull,
)
from gpu.sampling import SamplingParams
from gpu.step import DeviceInfo
from gpu.tokenizer import DecodeStream, Tokenizer

__all__ = [
    "ContextExceeded",
    "DecodeStream",
    "DeviceError",
    "DeviceInfo",
    "Engine",
    "EngineClosed",
    "EngineError",
    "EngineInfo",
    "GenerationDefaults",
    "InvalidRequest",
    "ModelConfig",
    "ModelError",
    "QueueFull",
    "Run",
    "SamplingParams",
    "Tokenizer",
    "devices",
]


def devices() -> list[DeviceInfo]:
    """The adapters an engine can run on, best first; the position is what `adapter=` takes."""
    from gpu.device import list_devices

    return list_devices()
