"""Subject of a benchmark: a model folder, or random weights in the shape of a known model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpu.checkpoint.open_model import open_model
from gpu.checkpoint.packing import FORMATS
from gpu.checkpoint.random_checkpoint import LLAMA_SHAPES, RandomCheckpoint
from gpu.checkpoint.reader import Checkpoint
from gpu.config import ModelConfig
from gpu.errors import ModelError
from gpu.kv.blocks import block_bytes, blocks_for
from gpu.load_options import LoadOptions
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.webgpu.device import Device


@dataclass(frozen=True, slots=True)
class BenchModel:
    """A model under the name it is reported by."""

    name: str
    config: ModelConfig
    checkpoint: Checkpoint | RandomCheckpoint

    @classmethod
    def from_folder(cls, folder: Path) -> BenchModel:
        """Open a model folder. Raises ModelError if it cannot be run or is no Llama: the files for
        other engines, and the floor, are written for its shape."""
        where = folder.resolve()
        name = where.parent.name if where.name == "model" else where.name  # …/tale/model: tale
        config, checkpoint = open_model(folder)
        if config.model_type != "llama":
            raise ModelError(f"{folder}: the benchmark runs llama models, not {config.model_type}")
        return cls(name, config, checkpoint)

    @classmethod
    def from_shape(cls, name: str) -> BenchModel:
        """Return random weights in the shape `name` of
        `gpu.checkpoint.random_checkpoint.LLAMA_SHAPES`."""
        config = LLAMA_SHAPES[name]
        return cls(name, config, RandomCheckpoint(config))

    def runner(
        self,
        device: Device,
        dtype: str,
        context: int,
        kv_dtype: str | None = None,
        on_weights: Callable[[int], None] = lambda n: None,
    ) -> WgpuRunner:
        """Return a runner with one slot of exactly `context` tokens; `on_weights` gets the number
        of weights of each tensor. Raises DeviceError if the device cannot hold them."""
        return WgpuRunner(
            device,
            self.config,
            self.checkpoint,
            LoadOptions(
                dtype=dtype,
                kv_dtype=kv_dtype,
                context=context,
                kv_memory_bytes=blocks_for(context)
                * block_bytes(self.config, kv_dtype or FORMATS[dtype].kv),
                slots=1,
            ),
            on_weights=on_weights,
        )
