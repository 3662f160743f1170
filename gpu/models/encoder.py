"""Base class of encoders: embedding and layers on the device. `Bert`, `ModernBert` and `T5Encoder`
are the forward passes."""

from __future__ import annotations

from abc import ABC, abstractmethod

from gpu.checkpoint.weights import WeightLoader
from gpu.config import ModelConfig
from gpu.models.forward_pass import Pass
from gpu.models.loading import LayerLoader
from gpu.models.rope_tables import upload_rope_cos_sin
from gpu.ops import Norm
from gpu.webgpu.buffers import Tensor


class EncoderModel(ABC):
    """Weights of an encoder on the device, for texts of `max_tokens`, and its forward pass."""

    def __init__(self, config: ModelConfig, load: WeightLoader, max_tokens: int) -> None:
        layers = LayerLoader(config, load)
        self.config = config
        self.embedding = layers.embedding()
        self.positions = layers.positions()
        self.position_biases = layers.position_biases()
        self.norm = layers.embedding_norm()
        self.layers = [layers.layer(i) for i in range(config.n_layers)]
        self.final_norm = layers.final_norm() if layers.tensors.after else None
        self._rope_cos_sin = upload_rope_cos_sin(config, load.memory, max_tokens)

    @abstractmethod
    def forward(self, run: Pass) -> Tensor:
        """Record the pass of whole texts, whose ends the batch has; return the last states, (rows,
        hidden_size)."""

    def embed(self, run: Pass) -> Tensor:
        """[norm](embedding [+ position])."""
        x = run.embed(self.embedding, self.positions)
        return x if self.norm is None else run.norm("embed.norm", self.norm, x)

    def heads(self, run: Pass, i: int, x: Tensor, norm: Norm | None = None) -> Tensor:
        """Return the heads of layer i, side by side, whose projections read [norm](x)."""
        rope = self.config.rope_of(i)
        cos_sin = self._rope_cos_sin[rope] if rope else None
        q = run.qkv(i, self.layers[i].qkv, x, norm=norm, rope=cos_sin)
        return run.attention(i, q, self.position_biases[i])
