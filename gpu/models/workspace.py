"""Where a pass leaves its activations, and what its instruments keep of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from gpu.checkpoint.matrix import ExpertStack, Matrix
from gpu.config import Experts, ModelConfig
from gpu.ops import Grouping, Routing
from gpu.ops.step_buffer import MAX_ROWS
from gpu.webgpu.buffers import Memory, Tensor, padded


@dataclass(frozen=True, slots=True)
class Stream:
    """Where the residual stream lies: before layer l, and between its attention and its MLP.

    A plan that keeps nothing needs two buffers in turn (a dispatch cannot read and write the same
    one); others keep every state, see `States`.
    """

    before: Callable[[int], Tensor]
    middle: Callable[[int], Tensor]


@dataclass(frozen=True, slots=True)
class ExpertWork:
    """Of a mixture of experts; a row has `per_token` pairs.

    logits        (MAX_ROWS, ≥ n + 1): of experts, then of the gate of the shared one
    gated, parts  (MAX_ROWS · per_token, …): of each pair its MLP's activations, and what it gives
    shared_gated, shared
                  (MAX_ROWS, …): the same of the expert of every row; None where there is none
    """

    logits: Tensor
    routing: Routing
    grouping: Grouping
    gated: Tensor
    parts: Tensor
    shared_gated: Tensor | None
    shared: Tensor | None

    @classmethod
    def make(cls, config: ModelConfig, experts: Experts, memory: Memory) -> ExpertWork:
        hidden, shared, pairs = config.hidden_size, experts.shared_width, experts.per_token

        def room(name: str, width: int, each: int = 1) -> Tensor:
            return memory.zeros(f"experts.{name}", (MAX_ROWS * each, padded(width)))

        return cls(
            room("logits", experts.n + (shared > 0)),
            Routing.make(experts, memory),
            Grouping.make(experts, memory),
            room("gated", experts.width, pairs),
            room("parts", hidden, pairs),
            room("shared_gated", shared) if shared else None,
            room("shared", hidden) if shared else None,
        )


@dataclass(frozen=True, slots=True)
class Workspace:
    """Activations, reused by every layer and every plan: (MAX_ROWS, width) each. `scratch`: those
    that only some architectures need, by the names they give them. `experts`: of mixtures."""

    stream: Stream
    q: Tensor
    attended: Tensor
    gated: Tensor
    scratch: Mapping[str, Tensor]
    experts: ExpertWork | None = None

    @classmethod
    def make(cls, config: ModelConfig, memory: Memory, scratch: Mapping[str, int]) -> Workspace:
        """`scratch`: name and width of what this architecture needs beside the others."""

        def rows(name: str, width: int) -> Tensor:
            return memory.zeros(name, (MAX_ROWS, padded(width)))

        q_width = config.n_heads * config.head_dim
        a, b = rows("stream.a", config.hidden_size), rows("stream.b", config.hidden_size)
        return cls(
            Stream(before=lambda layer: a, middle=lambda layer: b),
            rows("q", q_width),
            rows("attended", q_width),
            rows("gated", config.intermediate_size),
            {name: rows(name, width) for name, width in scratch.items()},
            ExpertWork.make(config, config.experts, memory) if config.experts else None,
        )


@dataclass(frozen=True, slots=True)
class States:
    """The residual stream of a plan of `n_rows` rows, every state of it kept.

    states   (n_layers + 1, at least n_rows · width): before each layer and after the last
    middles  (n_layers, at least n_rows · width): after each attention
    """

    n_rows: int
    width: int
    stream: Stream
    states: Tensor
    middles: Tensor

    @property
    def as_rows(self) -> Tensor:
        """`states` as one matrix: row l · n_rows + r is row r before layer l. Raises ValueError
        where there is a gap between the states."""
        n_states, part = self.states.shape
        if part != self.n_rows * self.width:
            raise ValueError(f"{self.states!r} is not rows of {self.width} one behind the other")
        return replace(self.states, shape=(n_states * self.n_rows, self.width))


@dataclass(frozen=True, slots=True)
class Capture:
    """Where a captured plan leaves its statistics of the states it keeps."""

    entropy: Callable[[int], Tensor]  # of a layer: (rows, n_heads) bits
    entropies: Tensor  # all of them: (n_layers, at least rows · n_heads)
    stats: Tensor  # (rows, 1 + 5 · n_layers)
    routing: Callable[[int], Routing] | None = None  # of a layer that has experts
    routings: Routing | None = None  # all: (n_expert_layers, at least rows · per_token) each

    @property
    def kept(self) -> tuple[Tensor, ...]:
        """What is read back, in this order."""
        of_experts = (self.routings.chosen, self.routings.gates) if self.routings else ()
        return self.stats, self.entropies, *of_experts


@dataclass(frozen=True, slots=True)
class Weights:
    """Where a plan leaves attention weights of a range of keys.

    keys    uniform: position of the first key, number of keys
    layer   of a layer: room for (rows, n_heads, n_keys)
    layers  all of them: (n_layers, room)
    """

    keys: Tensor
    layer: Callable[[int], Tensor]
    layers: Tensor


@dataclass(frozen=True, slots=True)
class Routed:
    """Where a plan leaves which experts its rows were given to (`gpu.step.Routes`).

    routing, norms  of a layer: (MAX_ROWS, per_token) each
    chosen, gates, lengths
                    of all layers with experts: (n_expert_layers, at least MAX_ROWS · per_token)
    """

    routing: Callable[[int], Routing]
    norms: Callable[[int], Tensor]
    chosen: Tensor
    gates: Tensor
    lengths: Tensor


@dataclass(frozen=True, slots=True)
class Reached:
    """What changes the pass of each slot: of a layer, tables that ops find a row's slot in.

    heads    (n_slots, n_heads) factors         updates  (n_slots, 2) factors of attention and MLP
    vectors  (n_slots, width)                   keeps    (n_slots, 1)  0: the vector replaces
    update   (MAX_ROWS, width): what a part of a layer would add, before its factor
    """

    heads: Callable[[int], Tensor]
    updates: Callable[[int], Tensor]
    vectors: Callable[[int], Tensor]
    keeps: Callable[[int], Tensor]
    update: Tensor


@dataclass(frozen=True, slots=True)
class LowRank:
    """What adapters add to the outputs of one matrix, see `gpu.lora.stack.Stack`."""

    a: Matrix
    b: Tensor
    first: Tensor
    ends: Tensor


@dataclass(frozen=True, slots=True)
class ExpertLowRank:
    """What adapters add to the outputs of every expert; `slots`: of `a`, where all of them lie."""

    a: ExpertStack
    b: Tensor
    first: Tensor
    ends: Tensor
    slots: Tensor


@dataclass(frozen=True, slots=True)
class Adapted:
    """The adapters of a model.

    of, of_experts
               matrix, by its name: what is added to it
    strengths  (n_slots, n_loras)
    shrunk     room for products with A, n_modules · ranks for each row, or pair of an expert
    added      room for a bias of each of them, as wide as an output
    """

    of: Mapping[str, LowRank]
    of_experts: Mapping[str, ExpertLowRank]
    strengths: Tensor
    shrunk: Tensor
    added: Tensor


@dataclass(frozen=True, slots=True)
class Instruments:
    """What a recording of the pass does beside the pass, or to it (`reached`, `adapted`). `capture`
    needs `states`."""

    states: States | None = None
    capture: Capture | None = None
    weights: Weights | None = None
    reached: Reached | None = None
    adapted: Adapted | None = None
    routed: Routed | None = None


NONE = Instruments()
