"""Llama (Touvron et al. 2023): pre-norm blocks of grouped-query attention with rotary positions and
a SwiGLU MLP, RMSNorm throughout. The files of models built like it say what they do otherwise.

Read it top to bottom like the paper; running it records a plan. Five dispatches a layer:

    qkv        RMSNorm, projections to queries, keys, values; rotary positions; keys and values
               into the cache
    attention  softmax(q · kᵀ / √d) · v (of long contexts in splits, put together by a sixth)
    out        projection, added to the residual stream
    gate_up    RMSNorm, two projections, silu(gate) · up
    down       projection, added to the residual stream
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpu import ops
from gpu.checkpoint.matrix import Matrix
from gpu.checkpoint.weights import Source, WeightLoader
from gpu.models.decoder import Biases, Decoder
from gpu.models.recording import Pass
from gpu.ops import Norm
from gpu.webgpu.buffers import Tensor


@dataclass(frozen=True, slots=True)
class Norms:
    """Of one block: of what attention and MLP are given, and of what they give; None where there is
    none."""

    before_attention: Norm | None = None
    after_attention: Norm | None = None
    before_mlp: Norm | None = None
    after_mlp: Norm | None = None


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one block beside its MLP. Biases are None where the model has none."""

    norms: Norms
    qkv: Matrix  # (n_heads + 2 n_kv_heads) · head_dim × hidden, see WeightLoader.heads
    qkv_bias: Tensor | None
    out: Matrix  # hidden × n_heads · head_dim
    out_bias: Tensor | None


@dataclass(frozen=True, slots=True)
class Mlp:
    """Weights of one MLP."""

    gate_up: Matrix  # 2 · intermediate × hidden, rows of gate and up in turn
    gate_up_bias: Tensor | None
    down: Matrix  # hidden × intermediate
    down_bias: Tensor | None


class Llama(Decoder):
    """Weights on the device and the pass that uses them."""

    has_norms_after = False
    gain_is_less_one = False
    """Checkpoints hold what gains differ from 1 by."""

    @property
    def scratch(self) -> Mapping[str, int]:
        return {"update": self.config.hidden_size} if self.has_norms_after else {}

    def load_rest(self, load: WeightLoader, context: int) -> None:
        self.layers: list[Layer] = []
        self.mlps: dict[int, Mlp] = {}
        for i in range(self.config.n_layers):
            self.layers.append(self.load_layer(load, i))
            self.load_mlp(load, i)

    def layer_matrices(self) -> list[Matrix]:
        each = enumerate(self.layers)
        return [m for i, la in each for m in (la.qkv, la.out, *self.mlp_matrices(i))]

    def mlp_matrices(self, i: int) -> Sequence[Matrix]:
        """Of layer i, in the order a step reads them."""
        return self.mlps[i].gate_up, self.mlps[i].down

    # ---- the pass ---------------------------------------------------------------------------

    def attention(self, run: Pass, i: int) -> None:
        layer, name = self.layers[i], f"layer{i:02}.attn"
        self.project(run, name, i)
        attended, norm = run.attend(name, i), layer.norms.after_attention
        run.add(f"{name}.out", "attention", i, attended, layer.out, layer.out_bias, norm)

    def project(self, run: Pass, name: str, i: int) -> None:
        """Record queries into `work.q`, keys and values into the cache."""
        layer, work = self.layers[i], run.work
        label, x, norm = f"{name}.qkv", work.stream.before(i), layer.norms.before_attention
        ops.qkv(
            run.rec,
            run.batch,
            label,
            self.config,
            x,
            layer.qkv,
            self.rotations(i),
            run.pools,
            i,
            work.q,
            norm=norm,
            bias=run.bias(label, x, layer.qkv, layer.qkv_bias, norm),
        )

    def mlp(self, run: Pass, i: int) -> None:
        mlp, norms, name, work = self.mlps[i], self.layers[i].norms, f"layer{i:02}.mlp", run.work
        label, x, before = f"{name}.gate_up", work.stream.middle(i), norms.before_mlp
        ops.matmul(
            run.rec,
            run.batch,
            label,
            x,
            mlp.gate_up,
            work.gated,
            norm=before,
            bias=run.bias(label, x, mlp.gate_up, mlp.gate_up_bias, before),
            activation=self.config.activation,
            gated=True,
        )
        run.add(f"{name}.down", "mlp", i, work.gated, mlp.down, mlp.down_bias, norms.after_mlp)

    # ---- the checkpoint ---------------------------------------------------------------------

    def load_norm(self, load: WeightLoader, name: str, module: str) -> Norm:
        n, plus = self.config.hidden_size, float(self.gain_is_less_one)
        gain = load.vector(name, f"{module}.weight", n=n, plus=plus)
        return Norm(gain, self.config.rms_norm_eps)

    def load_norms(self, load: WeightLoader, name: str, prefix: str) -> Norms:
        return Norms(
            before_attention=self.load_norm(load, f"{name}.attn.norm", f"{prefix}.input_layernorm"),
            before_mlp=self.load_norm(
                load, f"{name}.mlp.norm", f"{prefix}.post_attention_layernorm"
            ),
        )

    def turned_rows(self, i: int) -> int:
        """How many rows of a head the projection leaves in pairs that are turned together."""
        return 0 if self.config.rope_of(i) is None else self.config.turned_dim

    def attention_sources(self, attn: str) -> tuple[Source, Source, Source]:
        """The projections to queries, keys and values."""
        return f"{attn}.q_proj.weight", f"{attn}.k_proj.weight", f"{attn}.v_proj.weight"

    def mlp_sources(self, mlp: str) -> tuple[Source, Source]:
        """Gate and up."""
        return f"{mlp}.gate_proj.weight", f"{mlp}.up_proj.weight"

    def load_layer(self, load: WeightLoader, i: int) -> Layer:
        config, name, prefix = self.config, f"layer{i:02}", f"model.layers.{i}"
        attn, hidden = f"{prefix}.self_attn", config.hidden_size
        width, turned = config.n_heads * config.head_dim, self.turned_rows(i)
        of_out = Biases(load, config.out_bias)
        q, k, v = (f"{attn}.{p}_proj.bias" for p in "qkv")
        return Layer(
            norms=self.load_norms(load, name, prefix),
            qkv=load.heads(f"{name}.attn.qkv", *self.attention_sources(attn), config, turned),
            qkv_bias=load.head_biases(f"{name}.attn.qkv.bias", q, k, v, config, turned)
            if config.attention_bias
            else None,
            out=load.matrix(f"{name}.attn.out", f"{attn}.o_proj.weight", hidden, width),
            out_bias=of_out.vector(f"{name}.attn.out.bias", f"{attn}.o_proj.bias", n=hidden),
        )

    def load_mlp(self, load: WeightLoader, i: int) -> None:
        """Put the MLP of layer i into `mlps`."""
        config, name, mlp = self.config, f"layer{i:02}.mlp", f"model.layers.{i}.mlp"
        hidden, inner = config.hidden_size, config.intermediate_size
        biases = Biases(load, config.mlp_bias)
        self.mlps[i] = Mlp(
            gate_up=load.interleaved(f"{name}.gate_up", *self.mlp_sources(mlp), inner, hidden),
            gate_up_bias=biases.vector(
                f"{name}.gate_up.bias",
                f"{mlp}.gate_proj.bias",
                f"{mlp}.up_proj.bias",
                n=2 * inner,
            ),
            down=load.matrix(f"{name}.down", f"{mlp}.down_proj.weight", hidden, inner),
            down_bias=biases.vector(f"{name}.down.bias", f"{mlp}.down_proj.bias", n=hidden),
        )
