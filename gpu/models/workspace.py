"""Buffers of a pass: its activations, and what instruments capture, change or adapt."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from gpu.checkpoint.matrix import ExpertStack, Matrix
from gpu.config import ModelConfig, MoeConfig
from gpu.ops import ExpertPermutation, ExpertRouting
from gpu.step import KvVariant
from gpu.webgpu.buffers import Memory, Tensor, padded


@dataclass(frozen=True, slots=True)
class ResidualStream:
    """Buffers of the residual stream before each layer (`resid_pre`) and between its attention and
    its MLP (`resid_mid`).

    A plan that keeps no states uses two buffers in turn, because a dispatch cannot read and write
    the same one; others keep every state, see `States`.
    """

    resid_pre: Callable[[int], Tensor]
    resid_mid: Callable[[int], Tensor]


@dataclass(frozen=True, slots=True)
class MoeWorkspace:
    """Activations of a mixture of experts. An assignment is a pair of a row and one of its
    `experts_per_token` experts.

    logits         (max_rows, ≥ n + 1): of the experts, then of the shared expert's gate
    ffn_hidden, expert_out
                   (max_rows · experts_per_token, …): activations and output of each assignment
    shared_hidden, shared_out
                   (max_rows, …): the same of the shared expert; None if there is none
    """

    logits: Tensor
    routing: ExpertRouting
    permutation: ExpertPermutation
    ffn_hidden: Tensor
    expert_out: Tensor
    shared_hidden: Tensor | None
    shared_out: Tensor | None

    @classmethod
    def make(cls, config: ModelConfig, moe: MoeConfig, memory: Memory) -> MoeWorkspace:
        hidden, shared = config.hidden_size, moe.shared_intermediate_size

        def zeros(name: str, width: int, per_row: int = 1) -> Tensor:
            return memory.zeros(f"experts.{name}", (memory.max_rows * per_row, padded(width)))

        return cls(
            zeros("logits", moe.n_experts + (shared > 0)),
            ExpertRouting.make(moe, memory),
            ExpertPermutation.make(moe, memory),
            zeros("ffn_hidden", moe.intermediate_size, moe.experts_per_token),
            zeros("expert_out", hidden, moe.experts_per_token),
            zeros("shared_hidden", shared) if shared else None,
            zeros("shared_out", hidden) if shared else None,
        )


@dataclass(frozen=True, slots=True)
class Workspace:
    """Activations, (max_rows, width) each, which every layer and every plan reuses. `scratch`:
    those that only some architectures need, by name."""

    stream: ResidualStream
    q: Tensor
    attn_out: Tensor
    ffn_hidden: Tensor
    scratch: Mapping[str, Tensor]
    moe: MoeWorkspace | None = None

    @classmethod
    def make(cls, config: ModelConfig, memory: Memory, scratch: Mapping[str, int]) -> Workspace:
        """Allocate the activations; `scratch`: names and widths."""

        def rows(name: str, width: int) -> Tensor:
            return memory.zeros(name, (memory.max_rows, padded(width)))

        q_width = config.n_heads * config.head_dim
        a, b = rows("stream.a", config.hidden_size), rows("stream.b", config.hidden_size)
        return cls(
            ResidualStream(resid_pre=lambda layer: a, resid_mid=lambda layer: b),
            rows("q", q_width),
            rows("attn_out", q_width),
            rows("ffn_hidden", config.intermediate_size),
            {name: rows(name, width) for name, width in scratch.items()},
            MoeWorkspace.make(config, config.experts, memory) if config.experts else None,
        )


@dataclass(frozen=True, slots=True)
class States:
    """Every state of the residual stream, for a plan of `n_rows` rows.

    states      (n_layers + 1, at least n_rows · width): before each layer and after the last
    mid_states  (n_layers, at least n_rows · width): after each attention
    """

    n_rows: int
    width: int
    stream: ResidualStream
    states: Tensor
    mid_states: Tensor

    @property
    def as_rows(self) -> Tensor:
        """`states` as one matrix: row l · n_rows + r is row r before layer l. Raises ValueError if
        there is padding between the states."""
        n_states, size = self.states.shape
        if size != self.n_rows * self.width:
            raise ValueError(f"{self.states!r} is not contiguous rows of {self.width}")
        return replace(self.states, shape=(n_states * self.n_rows, self.width))


@dataclass(frozen=True, slots=True)
class Capture:
    """Buffers of a plan with statistics (`capture`).

    entropy    (rows, n_heads) of a layer, in bits; entropies: (n_layers, at least rows · n_heads)
    stats      (rows, 1 + 5 · n_layers)
    routing    of a layer with experts; routings: (n_expert_layers, at least rows ·
               experts_per_token) each
    """

    entropy: Callable[[int], Tensor]
    entropies: Tensor
    stats: Tensor
    routing: Callable[[int], ExpertRouting] | None = None
    routings: ExpertRouting | None = None

    @property
    def kept(self) -> tuple[Tensor, ...]:
        """The buffers to read back, in this order."""
        experts = (self.routings.expert_ids, self.routings.gates) if self.routings else ()
        return self.stats, self.entropies, *experts


@dataclass(frozen=True, slots=True)
class AttentionCapture:
    """Buffers for the attention weights of a range of keys.

    keys    uniform: position of the first key, number of keys
    layer   at least (rows, n_heads, n_keys) of a layer; layers: all of them
    """

    keys: Tensor
    layer: Callable[[int], Tensor]
    layers: Tensor


@dataclass(frozen=True, slots=True)
class RoutingCapture:
    """Buffers for the experts of each row (`gpu.step.ExpertChoices`).

    routing, norms  of a layer: (max_rows, experts_per_token) each
    chosen, gates, lengths
                    of all layers with experts: (n_expert_layers, at least max_rows ·
                    experts_per_token)
    """

    routing: Callable[[int], ExpertRouting]
    norms: Callable[[int], Tensor]
    chosen: Tensor
    gates: Tensor
    lengths: Tensor


@dataclass(frozen=True, slots=True)
class Unfused:
    """Buffers for what fused dispatches keep in registers, of one row. Every layer writes them, so
    they are read before the next layer runs.

    attn_norm, mlp_norm  (1, width): input of the projections
    qkv                  (1, (n_heads + 2 · n_kv_heads) · head_dim): projections before the norm of
                         queries and keys and RoPE, in the order of the matrix
    gate_up              (1, 2 · intermediate_size): gate and up alternating
    up                   the same buffer for an MLP without a gate
    head_out             (n_heads, width): what the output projection makes of each head
    """

    attn_norm: Tensor
    mlp_norm: Tensor
    qkv: Tensor
    gate_up: Tensor
    up: Tensor
    head_out: Tensor


@dataclass(frozen=True, slots=True)
class PassInterventions:
    """Tables of the interventions of each slot, by layer.

    heads    (n_slots, n_heads) factors         updates  (n_slots, 2) factors of attention and MLP
    vectors  (n_slots, width)                   keeps    (n_slots, 1)  0: the vector replaces
    update   (max_rows, width): the update of a sublayer, before its factor
    experts  (n_slots, n_experts)  0: switched off; None for a model without experts
    """

    heads: Callable[[int], Tensor]
    updates: Callable[[int], Tensor]
    vectors: Callable[[int], Tensor]
    keeps: Callable[[int], Tensor]
    update: Tensor
    experts: Callable[[int], Tensor] | None = None


@dataclass(frozen=True, slots=True)
class LoraWeights:
    """Stacked LoRA weights of one matrix, see `gpu.lora.stack.LoraStack`."""

    a: Matrix
    b: Tensor
    first: Tensor
    ends: Tensor


@dataclass(frozen=True, slots=True)
class ExpertLoraWeights:
    """Stacked LoRA weights of one matrix of every expert; `slots`: the slot of each in `a`."""

    a: ExpertStack
    b: Tensor
    first: Tensor
    ends: Tensor
    slots: Tensor


@dataclass(frozen=True, slots=True)
class PassLora:
    """The LoRA adapters of a model.

    by_matrix, by_expert_matrix
                weights by the name of the matrix they adapt
    strengths   (n_slots, n_loras)
    lora_a_out  buffer for A · x: n_modules · ranks for each row or assignment
    lora_delta  buffer for B · A · x: a bias for each of them, as wide as an output
    """

    by_matrix: Mapping[str, LoraWeights]
    by_expert_matrix: Mapping[str, ExpertLoraWeights]
    strengths: Tensor
    lora_a_out: Tensor
    lora_delta: Tensor


@dataclass(frozen=True, slots=True)
class Instruments:
    """Measurements that a recording adds to the pass, and changes it allows (`interventions`,
    `lora`, `kv`, `masked`). `capture` needs `states`. `last_hidden`: (n_rows, width), for the final
    norm of every row. `unfused`: for one row, the parts of fused dispatches too. `kv`: how new keys
    and values are rounded; its window is that of the pass's configuration. `masked`: masked keys of
    each slot in a layer (n_slots, n_heads, 2), see `gpu.ops.attention.attention`."""

    states: States | None = None
    capture: Capture | None = None
    attention: AttentionCapture | None = None
    interventions: PassInterventions | None = None
    lora: PassLora | None = None
    routing_capture: RoutingCapture | None = None
    last_hidden: Tensor | None = None
    unfused: Unfused | None = None
    kv: KvVariant | None = None
    masked: Callable[[int], Tensor] | None = None


NO_INSTRUMENTS = Instruments()
