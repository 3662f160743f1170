"""GPT-2 (Radford et al. 2019): pre-norm blocks of attention and a GELU MLP, with LayerNorm, biases
everywhere, and a learned vector for each position that is added to the embedding.

    norm       LayerNorm
    qkv        projections to queries, keys, values; keys and values into the cache
    attention  softmax(q · kᵀ / √d) · v
    out        projection, added to the residual stream
    norm       LayerNorm
    up         projection, gelu
    down       projection, added to the residual stream
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gpu import ops
from gpu.checkpoint.matrix import Matrix
from gpu.checkpoint.weights import Cut, Source, WeightLoader
from gpu.config import ModelConfig
from gpu.models.decoder import Biases, Decoder
from gpu.models.recording import Pass
from gpu.models.workspace import Workspace
from gpu.ops import Batch, Norm
from gpu.webgpu.buffers import Memory, Tensor
from gpu.webgpu.plan import Recorder


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one block."""

    attention_norm: Norm
    qkv: Matrix  # 3 · hidden × hidden, see WeightLoader.heads
    qkv_bias: Tensor | None
    out: Matrix  # hidden × hidden
    out_bias: Tensor | None
    mlp_norm: Norm
    up: Matrix  # intermediate × hidden
    up_bias: Tensor | None
    down: Matrix  # hidden × intermediate
    down_bias: Tensor | None


@dataclass(frozen=True, slots=True)
class Modules:
    """Names of a layer's modules in the checkpoint."""

    attention_norm: str
    qkv: str
    out: str
    mlp_norm: str
    up: str
    down: str


class Gpt2(Decoder):
    """Weights on the device and the pass that uses them."""

    embedding_name = "transformer.wte.weight"
    norm_name = "transformer.ln_f"
    layers_name = "transformer.h"
    positions_name = "transformer.wpe.weight"
    modules = Modules("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")

    def __init__(self, config: ModelConfig, load: WeightLoader, memory: Memory, context: int):
        if self.embedding_name not in load.checkpoint:  # saved without its head
            for key in ("embedding_name", "norm_name", "layers_name", "positions_name"):
                setattr(self, key, getattr(self, key).partition(".")[2])
        super().__init__(config, load, memory, context)

    @property
    def scratch(self) -> Mapping[str, int]:
        return {"normed": self.config.hidden_size}

    def layer_matrices(self) -> list[Matrix]:
        return [m for la in self.layers for m in (la.qkv, la.out, la.up, la.down)]

    # ---- the pass ---------------------------------------------------------------------------

    def embed(self, run: Pass, chosen: Tensor, x: Tensor) -> None:
        super().embed(run, chosen, x)
        ops.add_positions(run.rec, run.batch, "positions", self.positions, x)

    def attention(self, run: Pass, i: int) -> None:
        layer, name, work = self.layers[i], f"layer{i:02}.attn", run.work
        normed = self._normed(run, f"{name}.norm", layer.attention_norm, work.stream.before(i))
        label = f"{name}.qkv"
        ops.qkv(
            run.rec,
            run.batch,
            label,
            self.config,
            normed,
            layer.qkv,
            self.rotations(i),
            run.pools,
            i,
            work.q,
            bias=run.bias(label, normed, layer.qkv, layer.qkv_bias),
        )
        attended = run.attend(name, i)
        run.add(f"{name}.out", "attention", i, attended, layer.out, layer.out_bias)

    def mlp(self, run: Pass, i: int) -> None:
        layer, name, work = self.layers[i], f"layer{i:02}.mlp", run.work
        x = work.stream.before(i) if self.config.parallel else work.stream.middle(i)
        normed = self._normed(run, f"{name}.norm", layer.mlp_norm, x)
        label = f"{name}.up"
        ops.matmul(
            run.rec,
            run.batch,
            label,
            normed,
            layer.up,
            work.gated,
            bias=run.bias(label, normed, layer.up, layer.up_bias),
            activation=self.config.activation,
        )
        run.add(f"{name}.down", "mlp", i, work.gated, layer.down, layer.down_bias)

    def logits(self, rec: Recorder, batch: Batch, work: Workspace, x: Tensor, out: Tensor) -> None:
        normed, width = work.scratch["normed"], self.config.hidden_size
        ops.norm(rec, batch, "head.norm", self.norm, width, x, normed, gather=True)
        ops.matmul(rec, batch, "head", normed, self.head, out, gathered=True)

    def _normed(self, run: Pass, label: str, norm: Norm, x: Tensor) -> Tensor:
        normed = run.work.scratch["normed"]
        ops.norm(run.rec, run.batch, label, norm, self.config.hidden_size, x, normed)
        return normed

    # ---- the checkpoint ---------------------------------------------------------------------

    def load_norm(self, load: WeightLoader, name: str, module: str) -> Norm:
        n = self.config.hidden_size
        gain = load.vector(name, f"{module}.weight", n=n)
        bias = load.vector(f"{name}.bias", f"{module}.bias", n=n)
        return Norm(gain, self.config.rms_norm_eps, centred=True, bias=bias)

    def load_rest(self, load: WeightLoader, context: int) -> None:
        config = self.config
        self.layers = [self.load_layer(load, i) for i in range(config.n_layers)]
        self.positions = load.table(
            "positions", self.positions_name, config.context, config.hidden_size
        )

    def linear(self, source: str, n: int) -> Source:
        """A matrix of n outputs: GPT-2 saves inputs × outputs."""
        return Cut(source, np.arange(n), n, transposed=True)

    def heads_of(self, source: str, *, transposed: bool) -> tuple[Source, Source, Source]:
        """Queries, keys and values of what holds all three."""
        n = self.config.n_heads * self.config.head_dim
        q, k, v = (Cut(source, rows, 3 * n, transposed) for rows in np.split(np.arange(3 * n), 3))
        return q, k, v

    def load_layer(self, load: WeightLoader, i: int) -> Layer:
        config, name, prefix = self.config, f"layer{i:02}", f"{self.layers_name}.{i}"
        hidden, inner, of = config.hidden_size, config.intermediate_size, self.modules
        turned = config.turned_dim
        of_out, of_mlp = Biases(load, config.out_bias), Biases(load, config.mlp_bias)
        qkv, out, up, down = (f"{prefix}.{m}" for m in (of.qkv, of.out, of.up, of.down))
        weights = self.heads_of(f"{qkv}.weight", transposed=True)
        biases = self.heads_of(f"{qkv}.bias", transposed=False)
        return Layer(
            attention_norm=self.load_norm(
                load, f"{name}.attn.norm", f"{prefix}.{of.attention_norm}"
            ),
            qkv=load.heads(f"{name}.attn.qkv", *weights, config, turned),
            qkv_bias=load.head_biases(f"{name}.attn.qkv.bias", *biases, config, turned)
            if config.attention_bias
            else None,
            out=load.matrix(
                f"{name}.attn.out", self.linear(f"{out}.weight", hidden), hidden, hidden
            ),
            out_bias=of_out.vector(f"{name}.attn.out.bias", f"{out}.bias", n=hidden),
            mlp_norm=self.load_norm(load, f"{name}.mlp.norm", f"{prefix}.{of.mlp_norm}"),
            up=load.matrix(f"{name}.mlp.up", self.linear(f"{up}.weight", inner), inner, hidden),
            up_bias=of_mlp.vector(f"{name}.mlp.up.bias", f"{up}.bias", n=inner),
            down=load.matrix(
                f"{name}.mlp.down", self.linear(f"{down}.weight", hidden), hidden, inner
            ),
            down_bias=of_mlp.vector(f"{name}.mlp.down.bias", f"{down}.bias", n=hidden),
        )
