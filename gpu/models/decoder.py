"""Base class of the models that write text: embedding, layers, final norm and output
head, on the device. `Llama`, `Gpt2` and `GptNeoX` are the forward passes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from gpu.checkpoint.matrix import ExpertStack, Matrix
from gpu.checkpoint.weights import WeightLoader
from gpu.config import ModelConfig, Stage
from gpu.models.forward_pass import Pass
from gpu.models.layer import Moe
from gpu.models.loading import LayerLoader
from gpu.models.rope_tables import rope_cos_sin, upload_rope_cos_sin
from gpu.ops import Norm
from gpu.webgpu.buffers import Memory, Tensor


class Decoder(ABC):
    """Weights of a model, or of one stage of it, on the device, for texts of `context` tokens, and
    its forward pass. `config` and `layers` are those of the stage."""

    def __init__(
        self,
        config: ModelConfig,
        load: WeightLoader,
        memory: Memory,
        context: int,
        stage: Stage | None = None,
    ) -> None:
        """`config`: that of the whole model; `stage`: None: all of it."""
        self.stage = stage = stage or Stage(0, config.n_layers, config.n_layers)
        self.config = config.of_stage(stage)
        layers = LayerLoader(config, load)
        self._embedding = layers.embedding() if stage.is_first else None
        self.layers = [layers.layer(i) for i in stage.layers]
        self.positions = layers.positions() if stage.is_first else None
        self._norm = layers.final_norm() if stage.is_last else None
        self._head = self._load_head(layers) if stage.is_last else None
        self._rope_cos_sin = upload_rope_cos_sin(self.config, memory, context)

    def _load_head(self, layers: LayerLoader) -> Matrix:
        if not self.config.tie_embeddings:
            return layers.head()
        return self._embedding or layers.embedding()

    @property
    def embedding(self) -> Matrix:
        assert self._embedding is not None, "only the first stage has the embedding"
        return self._embedding

    @property
    def norm(self) -> Norm:
        assert self._norm is not None, "only the last stage has the final norm"
        return self._norm

    @property
    def head(self) -> Matrix:
        assert self._head is not None, "only the last stage has the output head"
        return self._head

    # ---- the pass ---------------------------------------------------------------------------

    @abstractmethod
    def forward(self, run: Pass) -> Tensor:
        """Record the pass up to the last layer; return the residual stream after it."""

    def embed(self, run: Pass) -> Tensor:
        """Return the residual stream before the first layer: the embeddings of the rows' tokens,
        or what the stage before has sent."""
        if self._embedding is None:
            return run.receive()
        return run.embed(self._embedding, self.positions)

    @abstractmethod
    def logits(self, run: Pass, x: Tensor, out: Tensor) -> Tensor:
        """Record the output head for the sampled rows: out (n_samples, vocab_size)."""

    def rope(self, i: int) -> Tensor | None:
        """Return cosine and sine of the rotary positions of layer i; None if it has none."""
        rope = self.config.rope_of(i)
        return self._rope_cos_sin[rope] if rope else None

    def set_rope(self, memory: Memory, context: int, n_positions: int, *, rotates: bool) -> None:
        """See `Runner.set_rope`. `context`: that which the model was loaded for."""
        for rope, table in self._rope_cos_sin.items():
            cos_sin = rope_cos_sin(self.config, context, rope, n_positions, rotates=rotates)
            memory.write(table, cos_sin)

    @property
    def scratch(self) -> Mapping[str, int]:
        """Names and widths of the activations this model needs in addition to those of every
        `Workspace`."""
        config, first = self.config, self.layers[0]
        scratch: dict[str, int] = {}
        if not self.norms_are_rms:
            scratch["normed"] = config.hidden_size
        if first.post_attention or first.post_mlp:
            scratch["update"] = config.hidden_size
        if first.qk_norm_gains is not None:
            scratch["projected"] = (config.n_heads + 2 * config.n_kv_heads) * config.head_dim
        return scratch

    @property
    def norms_are_rms(self) -> bool:
        """Whether norms are RMSNorms: all of a model are, or none is."""
        first = self.layers[0]
        norms = (first.pre_attention, first.post_attention, first.pre_mlp, first.post_mlp)
        return all(norm.is_rms for norm in norms if norm is not None)

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
        first = [] if self._embedding is None else [self._embedding]
        last = [] if self._head is None or self._head is self._embedding else [self._head]
        return [*first, *self.layer_matrices(), *last]
