"""An embedding model on a GPU: an encoder, and the pooling of its states."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path

import numpy as np

from gpu.checkpoint.reader import Checkpoint
from gpu.checkpoint.weights import WeightLoader
from gpu.config import ModelConfig
from gpu.config.sentence_transformers import SentenceConfig, read_encoder
from gpu.kv.blocks import ENCODER_SHAPE, ENCODER_TEXTS, MAX_ATTENDING
from gpu.models.registry import ENCODER_MODELS
from gpu.runners.encoder_passes import DTYPE, EncoderPasses, Ids
from gpu.step import MAX_ROWS, Floats
from gpu.webgpu.buffers import Memory
from gpu.webgpu.device import Device


class WgpuEncoder:
    """An encoder and its pooling on a device. See `gpu.runner.Encoder`."""

    def __init__(
        self,
        device: Device,
        config: ModelConfig,
        checkpoint: Checkpoint,
        sentence: SentenceConfig,
        name: str,
    ) -> None:
        self.name, self.config, self.sentence = name, config, sentence
        self._memory = memory = Memory(device, MAX_ROWS)
        self.max_tokens = sentence.max_tokens(config, MAX_ROWS)
        self.max_attending = min(self.max_tokens, MAX_ATTENDING)
        with WeightLoader(checkpoint, memory, DTYPE) as load:
            model = ENCODER_MODELS[config.model_type](config, load, self.max_tokens)
        self._passes = EncoderPasses(model, memory, ENCODER_SHAPE, self.max_attending)

    @classmethod
    def load(cls, folder: Path, device: Device) -> WgpuEncoder:
        """Load a folder as sentence-transformers and transformers save it. Raises ModelError and
        DeviceError."""
        config, sentence = read_encoder(folder)
        return cls(device, config, Checkpoint.open(folder), sentence, folder.resolve().name)

    @property
    def n_bytes(self) -> int:
        return sum(self._memory.n_bytes.values())

    def vectors(
        self, texts: Sequence[Ids], *, in_pieces: bool = False
    ) -> Generator[None, None, Floats]:
        states = yield from self._passes.states(texts, in_pieces=in_pieces)
        return self.sentence.pool(states, [len(ids) for ids in texts])

    def attention(self, ids: Ids, *, in_pieces: bool = False) -> Generator[None, None, Floats]:
        return self._passes.attention(ids, in_pieces=in_pieces)

    def n_fitting(self, lengths: Sequence[int], most_rows: int) -> int:
        ends = np.cumsum(lengths[:ENCODER_TEXTS])
        return max(1, int(np.searchsorted(ends, min(most_rows, MAX_ROWS), side="right")))
