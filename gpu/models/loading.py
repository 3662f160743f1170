"""Loading of one model's weights, by the roles that its architecture's tensor map gives to the
modules of the checkpoint."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpu.architectures.common.tensor_map import Kind, ModuleRole, TensorMap
from gpu.checkpoint.matrix import Matrix
from gpu.checkpoint.tensor_names import expert_modules, has_biases, tensor_map_of
from gpu.checkpoint.weights import Source, StackedSlice, TensorSlice, WeightLoader
from gpu.config import ModelConfig, MoeConfig
from gpu.models.layer import CrossAttention, Layer, Linear, Mlp, Moe
from gpu.models.relative_positions import relative_buckets
from gpu.ops import Norm
from gpu.ops.moe import NOT_RESIDENT
from gpu.webgpu.buffers import Tensor

PRE_ATTENTION, POST_ATTENTION = ("attn.qkv", "attn.norm"), ("attn.out.norm",)
PRE_MLP, POST_MLP = ("mlp.gate_up", "mlp.router", "mlp.norm"), ("mlp.down.norm",)
"""Dispatches that read the norms of a layer."""


class LayerLoader:
    """Loads the weights of one model with `load`. Raises ModelError for tensors that are missing or
    of other shapes than the config promises. `tensors`: the map of the checkpoint; None: the one of
    `tensor_map_of`."""

    def __init__(
        self, config: ModelConfig, load: WeightLoader, tensors: TensorMap | None = None
    ) -> None:
        self.config = config
        self.load = load
        self.tensors = tensors or tensor_map_of(config, load.checkpoint)

    # ---- outside of the layers --------------------------------------------------------------

    def embedding(self) -> Matrix:
        return self._vocab_matrix("embedding", self.tensors.embedding)

    def head(self) -> Matrix:
        return self._vocab_matrix("head", self.tensors.head)

    def _vocab_matrix(self, name: str, source: str) -> Matrix:
        return self.load.vocab_matrix(name, source, self.config.vocab_size, self.config.hidden_size)

    def positions(self) -> Tensor | None:
        """Learned positions (context, hidden_size), None if the architecture has none. Those of an
        encoder include the vector of the first token type, which all tokens of one text have."""
        roles = self.tensors.before.items()
        tables = [f"{module}.weight" for module, role in roles if role.layout == "table"]
        if not tables:
            return None
        first, width = self.config.first_position, self.config.hidden_size
        used = range(first, first + self.config.context)
        return self.load.table("positions", tables[0], used, width, plus=(*tables, None)[1])

    def embedding_norm(self) -> Norm | None:
        """Norm of the embeddings; None if the architecture has none."""
        for module, role in self.tensors.before.items():
            if role.kind == "norm":
                return self._norm("embed.norm", module, role)
        return None

    def position_biases(self, *, causal: bool = False) -> list[Tensor | None]:
        """Biases of each layer's attention scores by the distance of the key, as `ops.attention`
        takes them; None if the architecture has none. A layer without biases of its own has those
        of the layer before, the first layer those of the module outside of the layers. `causal`:
        of a decoder."""
        roles = self.tensors.before.items()
        outside = [module for module, role in roles if role.op == "position_biases"]
        found = self._position_biases("position_biases", *outside, causal=causal)
        of_layers: list[Tensor | None] = []
        for i in range(self.config.n_layers):
            own = self.tensors.modules(i, "attention", "position_biases")
            name = f"layer{i:02}.position_biases"
            found = self._position_biases(name, *own, causal=causal) or found
            of_layers.append(found)
        return of_layers

    def _position_biases(self, name: str, *modules: str, causal: bool) -> Tensor | None:
        """Load the biases of the only module; None without one."""
        if not modules:
            return None
        config, (module,) = self.config, modules
        n_buckets = config.relative_attention_num_buckets
        buckets = relative_buckets(n_buckets, config.relative_attention_max_distance, causal=causal)
        return self.load.position_biases(
            name, f"{module}.weight", buckets, n_buckets, config.n_heads
        )

    def final_norm(self) -> Norm:
        module = self.tensors.module_after("norm")
        return self._norm("norm", module, self.tensors.after[module])

    # ---- a layer ----------------------------------------------------------------------------

    def layer(self, i: int) -> Layer:
        pre_attention = self._layer_norm(i, "attn.norm", PRE_ATTENTION)
        pre_mlp = self._layer_norm(i, "mlp.norm", PRE_MLP)
        after = "post_norm" if pre_attention else "norm"
        return Layer(
            qkv=self._qkv(i),
            out=self._linear(i, "attn.out", self.config.n_heads * self.config.head_dim),
            ffn=self._mlp(i) if self.config.moe_of(i) is None else self._moe(i),
            pre_attention=pre_attention,
            post_attention=self._layer_norm(i, f"attn.{after}", POST_ATTENTION),
            pre_mlp=pre_mlp,
            post_mlp=self._layer_norm(i, f"mlp.{after}", POST_MLP),
            qk_norm_gains=self._qk_norm_gains(i),
        )

    def cross_attention(self, i: int) -> CrossAttention:
        """Load the cross-attention of a decoder's layer."""
        config, name = self.config, f"layer{i:02}.cross"
        width = config.n_heads * config.head_dim
        norm = self._layer_norm(i, "cross.norm", ("cross.q",))
        assert norm is not None, "cross-attention reads a norm"
        k, v = (f"{m}.weight" for m in self.tensors.modules(i, "attention", "cross.kv"))
        return CrossAttention(
            norm=norm,
            q=self._linear(i, "cross.q", config.hidden_size, width),
            kv=Linear(self.load.kv(f"{name}.kv", k, v, config)),
            out=self._linear(i, "cross.out", width),
        )

    def _layer_norm(self, i: int, name: str, ops: Sequence[str]) -> Norm | None:
        for module, role in self.tensors.modules(i, "norm", *ops).items():
            return self._norm(f"layer{i:02}.{name}", module, role)
        return None

    def _norm(self, name: str, module: str, role: ModuleRole) -> Norm:
        """Load a norm: LayerNorm if norms have biases or the config says so, else RMSNorm."""
        n, eps = self.config.hidden_size, self.config.norm_eps
        gain = self.load.vector(name, f"{module}.weight", n=n, plus=self._plus)
        if not has_biases(self.config, role):
            return Norm(gain, eps, centred=self.config.layer_norm)
        bias = self.load.vector(f"{name}.bias", f"{module}.bias", n=n)
        return Norm(gain, eps, centred=True, bias=bias)

    @property
    def _plus(self) -> float:
        """Number added to the weights of norms."""
        return float(self.tensors.norm_plus_one)

    def _qk_norm_gains(self, i: int) -> Tensor | None:
        modules, config = self.tensors.modules(i, "norm", "attn.qk_norm_rope"), self.config
        if not modules:
            return None
        all_heads = self.tensors.qk_norm_all_heads
        n_heads = (config.n_heads, config.n_kv_heads) if all_heads else (1, 1)
        gains = [
            (f"{module}.weight", n * config.head_dim)
            for module, n in zip(modules, n_heads, strict=True)
        ]
        return self.load.concatenated(f"layer{i:02}.attn.qk_norm", *gains, plus=self._plus)

    def _qkv(self, i: int) -> Linear:
        config, name = self.config, f"layer{i:02}.attn.qkv"
        modules = self.tensors.modules(i, "attention", "attn.qkv")
        q, k, v = self._qkv_sources(modules, "weight")
        # Rows are left as saved where a norm comes between the projection and the rotation.
        has_rope = config.rope_of(i) is not None and not self.tensors.modules(
            i, "norm", "attn.qk_norm_rope"
        )
        rotary_dim = config.rope_dim if has_rope else 0
        weight, bias = self.load.qkv(name, q, k, v, config, rotary_dim), None
        if config.attention_bias:
            q, k, v = self._qkv_sources(modules, "bias")
            bias = self.load.qkv_biases(f"{name}.bias", q, k, v, config, rotary_dim)
        return Linear(weight, bias)

    def _qkv_sources(self, modules: dict[str, ModuleRole], end: str) -> list[Source]:
        """Return the sources of queries, keys and values: three tensors, or slices of one."""
        if len(modules) == 3:
            return [f"{module}.{end}" for module in modules]
        ((module, role),) = modules.items()
        config = self.config
        n_q, n_kv = config.n_heads, config.n_kv_heads
        rows = np.arange((n_q + 2 * n_kv) * config.head_dim).reshape(-1, config.head_dim)
        parts = (
            [rows[part::3] for part in range(3)]
            if self.tensors.qkv_by_head
            else np.split(rows, [n_q, n_q + n_kv])
        )
        transposed = end == "weight" and role.layout == "transposed"
        source = f"{module}.{end}"
        return [TensorSlice(source, p.reshape(-1), rows.size, transposed) for p in parts]

    def _linear(self, i: int, op: str, n_in: int, n_out: int | None = None) -> Linear:
        """Load a matrix from `n_in` inputs to `n_out` outputs (None: the residual stream)."""
        name, n_out = f"layer{i:02}.{op}", n_out or self.config.hidden_size
        kind: Kind = "mlp" if op.startswith("mlp.") else "attention"
        ((module, role),) = self.tensors.modules(i, kind, op).items()
        tensor = f"{module}.weight"
        source: Source = tensor
        if role.layout == "transposed":
            source = TensorSlice(tensor, np.arange(n_out), n_out, transposed=True)
        weight, bias = self.load.matrix(name, source, n_out, n_in), None
        if has_biases(self.config, role):
            bias = self.load.vector(f"{name}.bias", f"{module}.bias", n=n_out)
        return Linear(weight, bias)

    # ---- MLPs -------------------------------------------------------------------------------

    def _mlp(self, i: int) -> Mlp:
        hidden, inner = self.config.hidden_size, self.config.intermediate_size
        is_gated = bool(self.tensors.modules(i, "mlp", "mlp.gate_up"))
        up = self._gate_up(i, "mlp.gate_up", inner) if is_gated else None
        return Mlp(
            up=up or self._linear(i, "mlp.up", hidden, inner),
            down=self._linear(i, "mlp.down", inner),
        )

    def _gate_up(self, i: int, op: str, inner: int) -> Linear:
        """Load gate and up as one matrix: from two tensors, or halves of one."""
        name, modules = f"layer{i:02}.{op}", self.tensors.modules(i, "mlp", op)
        gate, up = self._gate_up_sources(modules, inner, "weight")
        weight, bias = self.load.gate_up(name, gate, up, inner, self.config.hidden_size), None
        if has_biases(self.config, next(iter(modules.values()))):
            sources = self._gate_up_sources(modules, inner, "bias")
            bias = self.load.vector(f"{name}.bias", *sources, n=2 * inner)
        return Linear(weight, bias)

    def _gate_up_sources(
        self, modules: dict[str, ModuleRole], inner: int, end: str
    ) -> list[Source]:
        if len(modules) == 2:
            return [f"{module}.{end}" for module in modules]
        (module,) = modules
        halves = np.split(np.arange(2 * inner), 2)
        return [TensorSlice(f"{module}.{end}", half, 2 * inner) for half in halves]

    def _moe(self, i: int) -> Moe:
        moe, hidden = self.config.moe_of(i), self.config.hidden_size
        assert moe is not None
        name, shared, inner = f"layer{i:02}.mlp", None, moe.shared_intermediate_size
        router = self.load.float32_matrix(f"{name}.router", *self._router_sources(i, moe), k=hidden)
        if inner:
            down = self._linear(i, "mlp.shared.down", inner)
            shared = Mlp(self._gate_up(i, "mlp.shared.gate_up", inner), down)
        gate_up, down_of_each = (
            self.load.experts(
                f"layer{i:02}.{op}", self._expert_sources(i, op, moe, n, n_stacked), n, k,
                modules=expert_modules(self.config, i, op),
            )
            for op, n, k, n_stacked in (
                ("mlp.experts.gate_up", moe.intermediate_size, hidden, 2),
                ("mlp.experts.down", hidden, moe.intermediate_size, 1),
            )
        )  # fmt: skip
        n = moe.n_experts
        places = np.arange(n) if gate_up.host is None else np.full(n, NOT_RESIDENT)
        slots = self.load.memory.upload(
            f"{name}.experts.slots", places.astype(np.uint32), purpose="work"
        )
        return Moe(Linear(router), gate_up, down_of_each, slots, shared)

    def _router_sources(self, i: int, moe: MoeConfig) -> list[tuple[str, int]]:
        """Return the router, by the name this checkpoint has for it, and the shared expert's
        gate."""
        gates = [f"{module}.weight" for module in self.tensors.modules(i, "mlp", "mlp.router")]
        shared = [gate for gate in gates if gate.endswith("shared_expert_gate.weight")]
        routers = [gate for gate in gates if gate not in shared]
        saved = [gate for gate in routers if gate in self.load.checkpoint]
        has_shared = bool(moe.shared_intermediate_size)
        return [((saved or routers)[-1], moe.n_experts), *((g, 1) for g in shared if has_shared)]

    def _expert_sources(
        self, i: int, op: str, moe: MoeConfig, n: int, n_stacked: int
    ) -> list[Sequence[str | StackedSlice]]:
        """Return, per expert, the sources whose rows alternate in its matrix, n rows each: slices
        of a tensor of all experts, which stacks `n_stacked` of them for each, or tensors of its
        own."""
        stacked = next((m for m in self.tensors.modules(i, "mlp", op) if "*" not in m), None)
        if stacked is None or stacked not in self.load.checkpoint:
            modules = expert_modules(self.config, i, op)
            return [tuple(f"{module}.weight" for module in of_one) for of_one in modules]
        n_experts, n_rows = moe.n_experts, n_stacked * n
        return [
            [StackedSlice(stacked, e, j * n, n, n_experts, n_rows) for j in range(n_stacked)]
            for e in range(n_experts)
        ]
