"""Base class of all models: embedding, layers, final norm and output head, on the device. Each
architecture's file has its forward pass."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from gpu.checkpoint.matrix import ExpertStack, Matrix
from gpu.checkpoint.weights import WeightLoader
from gpu.config import ModelConfig
from gpu.models.forward_pass import Pass
from gpu.models.layer import Moe
from gpu.models.loading import LayerLoader
from gpu.models.rope import upload_rope_cos_sin
from gpu.webgpu.buffers import Memory, Tensor


class Decoder(ABC):
    """Weights of a model on the device, for texts of `context` tokens, and its forward pass."""

    def __init__(self, config: ModelConfig, load: WeightLoader, memory: Memory, context: int):
        self.config = config
        layers = LayerLoader(config, load)
        self.embedding = layers.embedding()
        self.layers = [layers.layer(i) for i in range(config.n_layers)]
        self.positions = layers.positions()
        self.norm = layers.final_norm()
        self.head = self.embedding if config.tie_embeddings else layers.head()
        self._rope_cos_sin = upload_rope_cos_sin(config, memory, context)

    # ---- the pass ---------------------------------------------------------------------------

    @abstractmethod
    def forward(self, run: Pass) -> Tensor:
        """Record the pass up to the last layer; return the residual stream after it."""

    @abstractmethod
    def logits(self, run: Pass, x: Tensor, out: Tensor) -> Tensor:
        """Record the output head for the sampled rows: out (n_samples, vocab_size)."""

    def rope(self, i: int) -> Tensor | None:
        """Return cosine and sine of the rotary positions of layer i; None if it has none."""
        rope = self.config.rope_of(i)
        return self._rope_cos_sin[rope] if rope else None

    @property
    def scratch(self) -> Mapping[str, int]:
        """Names and widths of the activations this model needs beside those of every
        `Workspace`."""
        config, first = self.config, self.layers[0]
        scratch: dict[str, int] = {}
        if not self.norm.is_rms:
            scratch["normed"] = config.hidden_size
        if first.post_attention or first.post_mlp:
            scratch["update"] = config.hidden_size
        if first.qk_norm_gains is not None:
            scratch["projected"] = (config.n_heads + 2 * config.n_kv_heads) * config.head_dim
        return scratch

    # ---- the weights ------------------------------------------------------------------------

    @property
    def moes(self) -> Mapping[int, Moe]:
        """Mixtures of experts by layer."""
        return {i: layer.moe for i, layer in enumerate(self.layers) if layer.moe}

    def layer_matrices(self) -> Sequence[Matrix]:
        """The matrices of the layers, in the order a step reads them."""
        return [matrix for layer in self.layers for matrix in layer.matrices]

    def expert_stacks(self) -> Sequence[ExpertStack]:
        """The matrices of experts, which are among those of the layers."""
        return [stack for moe in self.moes.values() for stack in moe.stacks]

    def matrices(self) -> list[Matrix]:
        """Every matrix once, in the order a step reads them."""
        found = [self.embedding, *self.layer_matrices()]
        return found if self.config.tie_embeddings else [*found, self.head]
