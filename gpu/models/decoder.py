"""What all architectures share: an embedding, layers that each add to a residual stream what
attention and an MLP make of it, a norm, an output head. The file of an architecture says the rest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from gpu import ops
from gpu.checkpoint.matrix import ExpertStack, Matrix
from gpu.checkpoint.weights import WeightLoader
from gpu.config import ModelConfig, RopeConfig
from gpu.kv.pools import KvPools
from gpu.models.recording import Pass
from gpu.models.workspace import NONE, Instruments, Workspace
from gpu.ops import Batch, Norm
from gpu.webgpu.buffers import Memory, Tensor
from gpu.webgpu.plan import Recorder


class Decoder(ABC):
    """Weights on the device and the pass that uses them, for texts of `context` tokens."""

    embedding_name = "model.embed_tokens.weight"
    norm_name = "model.norm"
    head_name = "lm_head.weight"

    def __init__(self, config: ModelConfig, load: WeightLoader, memory: Memory, context: int):
        self.config = config
        vocab, hidden = config.vocab_size, config.hidden_size
        self.embedding = load.vocabulary("embedding", self.embedding_name, vocab, hidden)
        self.load_rest(load, context)
        self.norm = self.load_norm(load, "norm", self.norm_name)
        self.head = (
            self.embedding
            if config.tie_embeddings
            else load.vocabulary("head", self.head_name, vocab, hidden)
        )
        self._rotations = _upload_rotations(config, memory, context)

    # ---- what an architecture says ----------------------------------------------------------

    @property
    def scratch(self) -> Mapping[str, int]:
        """Names and widths of the activations it needs beside those of every `Workspace`."""
        return {}

    @abstractmethod
    def load_rest(self, load: WeightLoader, context: int) -> None:
        """Load what lies between embedding and final norm."""

    @abstractmethod
    def load_norm(self, load: WeightLoader, name: str, module: str) -> Norm:
        """A norm over a state of the residual stream."""

    @abstractmethod
    def layer_matrices(self) -> Sequence[Matrix]:
        """The matrices of the layers, in the order a step reads them."""

    @abstractmethod
    def attention(self, run: Pass, i: int) -> None:
        """Record attention of layer i, from `run.work.stream.before(i)` to its `middle(i)`."""

    @abstractmethod
    def mlp(self, run: Pass, i: int) -> None:
        """Record the MLP of layer i, from `run.work.stream.middle(i)` to its `before(i + 1)`."""

    def embed(self, run: Pass, chosen: Tensor, x: Tensor) -> None:
        """Record what comes before the first layer."""
        scale = self.config.embedding_scale
        ops.embed(run.rec, run.batch, "embed", self.embedding, chosen, x, scale=scale)

    def expert_stacks(self) -> Sequence[ExpertStack]:
        """The matrices of experts, which are among those of the layers."""
        return ()

    # ---- the pass ---------------------------------------------------------------------------

    def matrices(self) -> list[Matrix]:
        """Every matrix once, in the order a step reads them."""
        found = [self.embedding, *self.layer_matrices()]
        return found if self.config.tie_embeddings else [*found, self.head]

    def rotations(self, i: int) -> Tensor | None:
        """What turns queries and keys of layer i; None: nothing."""
        rope = self.config.rope_of(i)
        return self._rotations[rope] if rope else None

    def forward(
        self,
        rec: Recorder,
        batch: Batch,
        work: Workspace,
        pools: KvPools,
        chosen: Tensor,
        instruments: Instruments = NONE,
    ) -> Tensor:
        """Record the pass up to the last layer; returns the residual stream after it. Instruments
        add dispatches and change none, but for `reached`, which parts sums, so that there is
        something to change, and `adapted`, which gives products a bias of each row."""
        states, capture, reached = instruments.states, instruments.capture, instruments.reached
        if states:
            work = replace(work, stream=states.stream)
        run = Pass(rec, batch, self.config, work, pools, instruments)
        self.embed(run, chosen, work.stream.before(0))
        rec.mark("embed")
        for i in range(self.config.n_layers):
            if reached:
                x, name = work.stream.before(i), f"layer{i:02}.steer"
                ops.steer(rec, batch, name, reached.vectors(i), reached.keeps(i), x)
            self.attention(run, i)
            rec.mark(f"layer{i:02}.attention")
            self.mlp(run, i)
            rec.mark(f"layer{i:02}.mlp")
        if states and capture:
            ops.layer_stats(
                rec, batch, "stats", self.config, states.states, states.middles, capture.stats
            )
        return work.stream.before(self.config.n_layers)

    def logits(self, rec: Recorder, batch: Batch, work: Workspace, x: Tensor, out: Tensor) -> None:
        """Record the output head for the sampled rows: out (n_samples, vocab_size)."""
        scale, cap = self.config.logit_scale, self.config.logit_cap
        ops.matmul(
            rec, batch, "head", x, self.head, out, norm=self.norm, scale=scale, cap=cap, gather=True
        )


@dataclass(frozen=True, slots=True)
class Biases:
    """Loads vectors that some models of an architecture have and others have not."""

    load: WeightLoader
    there: bool

    def vector(self, name: str, *sources: str, n: int) -> Tensor | None:
        return self.load.vector(name, *sources, n=n) if self.there else None


def rotations(
    config: ModelConfig, context: int, rope: RopeConfig | None = None
) -> npt.NDArray[np.float32]:
    """(context, rotary_dim / 2, 2) float32: cosine and sine of position × frequency, times the
    attention factor; computed in double precision, so that long positions keep their accuracy on
    any GPU. `rope`: one of the configuration's, None: that of layers without a window."""
    rope = rope or config.rope
    inv_freq = rope.inv_freq(config.turned_dim, context)
    angles = np.outer(np.arange(context, dtype=np.float64), inv_freq)
    turns = np.stack([np.cos(angles), np.sin(angles)], axis=-1) * rope.attention_factor
    return turns.astype(np.float32)


def _upload_rotations(
    config: ModelConfig, memory: Memory, context: int
) -> dict[RopeConfig, Tensor]:
    ropes = dict.fromkeys(config.rope_of(i) for i in range(config.n_layers))
    found: dict[RopeConfig, Tensor] = {}
    for rope in ropes:
        if rope is not None:
            name = "rotations" if rope == config.rope else "rotations.local"
            turns = rotations(config, context, rope)
            found[rope] = memory.upload(name, turns, purpose="work")
    return found
