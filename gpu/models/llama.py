"""Llama (Touvron et al. 2023) and the models built like it: pre-norm blocks of grouped-query
attention with rotary positions and a SwiGLU MLP, RMSNorm throughout.

Read it top to bottom like the paper; running it records a plan. Five dispatches a layer:

    qkv        RMSNorm, projections to queries, keys, values; rotary positions; keys and values
               into the cache
    attention  softmax(q · kᵀ / √d) · v (of long contexts in splits, put together by a sixth)
    out        projection, added to the residual stream
    gate_up    RMSNorm, two projections, silu(gate) · up
    down       projection, added to the residual stream
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gpu import ops
from gpu.checkpoint.weights import Matrix, WeightLoader
from gpu.config import ModelConfig
from gpu.kv.pools import KvPools
from gpu.models.workspace import NONE, Instruments, Reached, Workspace
from gpu.ops import Batch, Norm
from gpu.webgpu.buffers import Memory, Tensor
from gpu.webgpu.plan import Recorder


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one block. Biases are None where the model has none."""

    attention_norm: Norm
    qkv: Matrix  # (n_heads + 2 n_kv_heads) · head_dim × hidden, see WeightLoader.heads
    qkv_bias: Tensor | None
    out: Matrix  # hidden × n_heads · head_dim
    out_bias: Tensor | None
    mlp_norm: Norm
    gate_up: Matrix  # 2 · intermediate × hidden, rows of gate and up in turn
    gate_up_bias: Tensor | None
    down: Matrix  # hidden × intermediate
    down_bias: Tensor | None


class Llama:
    """Weights on the device and the pass that uses them."""

    def __init__(self, config: ModelConfig, load: WeightLoader, memory: Memory, context: int):
        self.config = config
        self.embedding = load.vocabulary(
            "embedding", "model.embed_tokens.weight", config.vocab_size, config.hidden_size
        )
        self.layers = [_load_layer(config, load, i) for i in range(config.n_layers)]
        self.norm = _norm(config, load, "norm", "model.norm.weight")
        self.head = (
            self.embedding
            if config.tie_embeddings
            else load.vocabulary("head", "lm_head.weight", config.vocab_size, config.hidden_size)
        )
        self.rotations = memory.upload("rotations", rotations(config, context), purpose="work")

    def matrices(self) -> list[Matrix]:
        """Every matrix once, in the order a step reads them."""
        found = [self.embedding]
        for layer in self.layers:
            found += [layer.qkv, layer.out, layer.gate_up, layer.down]
        return found if self.config.tie_embeddings else [*found, self.head]

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
        add dispatches and change none, but for `reached`: it parts sums, so that there is something
        to change."""
        states, capture, reached = instruments.states, instruments.capture, instruments.reached
        if states:
            work = replace(work, stream=states.stream)
        ops.embed(rec, batch, "embed", self.embedding, chosen, work.stream.before(0))
        rec.mark("embed")
        for i in range(self.config.n_layers):
            if reached:
                x, name = work.stream.before(i), f"layer{i:02}.steer"
                ops.steer(rec, batch, name, reached.vectors(i), reached.keeps(i), x)
            self._attention(rec, batch, work, pools, instruments, i)
            rec.mark(f"layer{i:02}.attention")
            self._mlp(rec, batch, work, reached, i)
            rec.mark(f"layer{i:02}.mlp")
        if states and capture:
            ops.layer_stats(
                rec, batch, "stats", self.config, states.states, states.middles, capture.stats
            )
        return work.stream.before(self.config.n_layers)

    def logits(self, rec: Recorder, batch: Batch, x: Tensor, out: Tensor) -> None:
        """Record the output head for the sampled rows: out (n_samples, vocab_size)."""
        ops.matmul(rec, batch, "head", x, self.head, out, norm=self.norm, gather=True)

    def _attention(
        self,
        rec: Recorder,
        batch: Batch,
        work: Workspace,
        pools: KvPools,
        instruments: Instruments,
        i: int,
    ) -> None:
        layer, name, config = self.layers[i], f"layer{i:02}.attn", self.config
        before, after = work.stream.before(i), work.stream.middle(i)
        weights, capture = instruments.weights, instruments.capture
        ops.qkv(
            rec,
            batch,
            f"{name}.qkv",
            config,
            before,
            layer.qkv,
            self.rotations,
            pools,
            i,
            work.q,
            norm=layer.attention_norm,
            bias=layer.qkv_bias,
        )
        if weights:
            ops.attention_weights(
                rec, batch, f"{name}.weights", config, work.q, pools, i, weights.keys,
                weights.layer(i),
            )  # fmt: skip
        ops.attention(
            rec,
            batch,
            f"{name}.attention",
            config,
            work.q,
            pools,
            i,
            work.attended,
            capture.entropy(i) if capture else None,
        )
        if reached := instruments.reached:
            factors = reached.heads(i)
            ops.scale_heads(rec, batch, f"{name}.heads", config, factors, work.attended)
        self._add(
            rec, batch, f"{name}.out", work.attended, layer.out, layer.out_bias, before, after,
            reached, "attention", i,
        )  # fmt: skip

    def _mlp(
        self, rec: Recorder, batch: Batch, work: Workspace, reached: Reached | None, i: int
    ) -> None:
        layer, name = self.layers[i], f"layer{i:02}.mlp"
        before, after = work.stream.middle(i), work.stream.before(i + 1)
        ops.matmul(
            rec,
            batch,
            f"{name}.gate_up",
            before,
            layer.gate_up,
            work.gated,
            norm=layer.mlp_norm,
            bias=layer.gate_up_bias,
            gated=True,
        )
        self._add(
            rec, batch, f"{name}.down", work.gated, layer.down, layer.down_bias, before, after,
            reached, "mlp", i,
        )  # fmt: skip

    def _add(
        self,
        rec: Recorder,
        batch: Batch,
        label: str,
        x: Tensor,
        weight: Matrix,
        bias: Tensor | None,
        before: Tensor,
        after: Tensor,
        reached: Reached | None,
        part: str,
        i: int,
    ) -> None:
        """after = before + [factor ·] (x · weightᵀ [+ bias])"""
        if reached is None:
            ops.matmul(rec, batch, label, x, weight, after, bias=bias, residual=before)
            return
        update, factors = reached.update, reached.updates(i)
        ops.matmul(rec, batch, label, x, weight, update, bias=bias)
        ops.scale_update(rec, batch, f"{label}.scale", part, before, update, factors, after)


def rotations(
    config: ModelConfig, context: int
) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """(context, head_dim / 2, 2) float32: cosine and sine of position × frequency, computed in
    double precision, so that long positions keep their accuracy on any GPU."""
    angles = np.outer(np.arange(context, dtype=np.float64), config.rope.inv_freq(config.head_dim))
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1).astype(np.float32)


def _norm(config: ModelConfig, load: WeightLoader, name: str, source: str) -> Norm:
    return Norm(load.vector(name, source, n=config.hidden_size), config.rms_norm_eps)


def _load_layer(config: ModelConfig, load: WeightLoader, i: int) -> Layer:
    name, prefix = f"layer{i:02}", f"model.layers.{i}"
    attn, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    hidden, inner = config.hidden_size, config.intermediate_size
    q_width = config.n_heads * config.head_dim

    def bias(label: str, *sources: str, n: int, there: bool) -> Tensor | None:
        return load.vector(label, *sources, n=n) if there else None

    q, k, v = (f"{attn}.{p}_proj" for p in "qkv")
    return Layer(
        attention_norm=_norm(config, load, f"{name}.attn.norm", f"{prefix}.input_layernorm.weight"),
        qkv=load.heads(f"{name}.attn.qkv", f"{q}.weight", f"{k}.weight", f"{v}.weight", config),
        qkv_bias=load.head_biases(
            f"{name}.attn.qkv.bias", f"{q}.bias", f"{k}.bias", f"{v}.bias", config
        )
        if config.attention_bias
        else None,
        out=load.matrix(f"{name}.attn.out", f"{attn}.o_proj.weight", hidden, q_width),
        out_bias=bias(
            f"{name}.attn.out.bias", f"{attn}.o_proj.bias", n=hidden, there=config.attention_bias
        ),
        mlp_norm=_norm(
            config, load, f"{name}.mlp.norm", f"{prefix}.post_attention_layernorm.weight"
        ),
        gate_up=load.interleaved(
            f"{name}.mlp.gate_up", f"{mlp}.gate_proj.weight", f"{mlp}.up_proj.weight", inner, hidden
        ),
        gate_up_bias=bias(
            f"{name}.mlp.gate_up.bias",
            f"{mlp}.gate_proj.bias",
            f"{mlp}.up_proj.bias",
            n=2 * inner,
            there=config.mlp_bias,
        ),
        down=load.matrix(f"{name}.mlp.down", f"{mlp}.down_proj.weight", hidden, inner),
        down_bias=bias(
            f"{name}.mlp.down.bias", f"{mlp}.down_proj.bias", n=hidden, there=config.mlp_bias
        ),
    )
