"""Device memory for activations that plans keep (statistics of layers, attention weights, states),
shared by plans of all sizes, since steps run one after the other. Residual streams, which are the
largest, are allocated at once, the others when the first plan needs them."""

from __future__ import annotations

from collections.abc import Callable

from gpu.config import ModelConfig
from gpu.errors import DeviceError
from gpu.models.workspace import (
    AttentionCapture,
    Capture,
    ResidualStream,
    RoutingCapture,
    States,
    Unfused,
)
from gpu.ops import ExpertRouting
from gpu.ops.layer_stats import n_stats
from gpu.webgpu.buffers import Memory, Tensor, padded

ROW_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
FEWEST_ROWS = 2
LEAST_CAPTURE_BYTES = 1 << 20
"""Least size of each of the two arenas for captured residual streams; the device's policy has the
usual and the largest."""

WEIGHTS_BYTES = 32 << 20
"""Most memory for attention weights; less if one row over the whole context in all layers needs
less. Questions about more are answered in several passes."""

ALIGNED_FLOATS = 64
"""Alignment of the parts of an arena that are bound alone: 256 bytes, the coarsest offset alignment
of any device."""


class CaptureBuffers:
    """Buffers for the measurements of one model with `context` tokens per sequence. They are made
    after weights and KV cache, from what memory is left. Raises DeviceError if that is not enough
    for two rows.

    max_rows      the largest bucket whose residual streams fit in an arena
    weights_room  attention weights of a layer that fit in theirs
    """

    def __init__(self, config: ModelConfig, context: int, memory: Memory) -> None:
        self._config = config
        self._memory = memory
        self._buffers: dict[str, Tensor] = {}
        self._captures: dict[int, Capture] = {}
        self._weights: AttentionCapture | None = None
        self._routed: RoutingCapture | None = None
        self._unfused: Unfused | None = None
        self.max_rows = captured_rows(config, memory)
        self.weights_room = _weights_room(config, context, memory)
        while not self._has_room_for_states():
            self.max_rows //= 2

    def _has_room_for_states(self) -> bool:
        """Allocate the streams of `max_rows` rows. Raises DeviceError if two rows are too many."""
        try:
            self.states(self.max_rows)
        except DeviceError:
            if self.max_rows <= FEWEST_ROWS:
                raise
            for buffer in self._buffers.values():
                self._memory.free(buffer)
            self._buffers.clear()
            return False
        return True

    def states(self, n_rows: int) -> States:
        """Return two arenas for the stream, because an op reads one state of it and writes the
        next, and no dispatch may read and write one buffer. If rows end in zero padding, which
        nobody writes, each bucket gets arenas of its own: the rows of one bucket would overwrite
        the padding of another."""
        n_layers, width = self._config.n_layers, padded(self._config.hidden_size)
        own = "" if width == self._config.hidden_size else f".{n_rows}"
        states = self._buffer(f"capture.states{own}", n_layers + 1, n_rows, width)
        mid_states = self._buffer(f"capture.mid_states{own}", n_layers, n_rows, width)
        stream = ResidualStream(
            lambda i: slice_of(states, i, (n_rows, width)),
            lambda i: slice_of(mid_states, i, (n_rows, width)),
        )
        return States(n_rows, width, stream, states, mid_states)

    def capture(self, n_rows: int) -> Capture:
        if n_rows not in self._captures:
            n_layers, n_heads = self._config.n_layers, self._config.n_heads
            entropies = self._buffer("capture.entropy", n_layers, n_rows, n_heads)
            stats = self._memory.zeros("capture.stats", (n_rows, n_stats(self._config)))
            self._captures[n_rows] = Capture(
                lambda i: slice_of(entropies, i, (n_rows, n_heads)),
                entropies,
                stats,
                *self._routing(n_rows),
            )
        return self._captures[n_rows]

    def _routing(
        self, n_rows: int
    ) -> tuple[Callable[[int], ExpertRouting] | None, ExpertRouting | None]:
        """Routing buffers of each MoE layer, and of all of them together."""
        experts, layers = self._config.experts, self._config.expert_layers
        if experts is None or not layers:
            return None, None
        shape = (n_rows, experts.experts_per_token)
        chosen = self._buffer("capture.chosen", len(layers), *shape, dtype="u32")
        gates = self._buffer("capture.gates", len(layers), *shape)

        def of_layer(layer: int) -> ExpertRouting:
            i = layers.index(layer)
            return ExpertRouting(slice_of(chosen, i, shape), slice_of(gates, i, shape))

        return of_layer, ExpertRouting(chosen, gates)

    def weights(self) -> AttentionCapture:
        if self._weights is None:
            n_layers, room = self._config.n_layers, self.weights_room
            layers = self._memory.zeros("inspect.weights", (n_layers, room))
            keys = self._memory.zeros("inspect.keys", (2,), "u32", uniform=True)
            self._weights = AttentionCapture(keys, lambda i: slice_of(layers, i, (1, room)), layers)
        return self._weights

    def routed(self) -> RoutingCapture:
        """Return the routing buffers. Raises ValueError for a model without experts."""
        if self._routed is None:
            experts, layers = self._config.experts, self._config.expert_layers
            if experts is None:
                raise ValueError(f"{self._config.model_type} models have no experts")
            rows = self._memory.max_rows
            shape = (len(layers), aligned(rows * experts.experts_per_token))
            chosen = self._memory.zeros("inspect.chosen", shape, "u32")
            gates = self._memory.zeros("inspect.gates", shape)
            lengths = self._memory.zeros("inspect.norms", shape)

            def of_layer(arena: Tensor, layer: int) -> Tensor:
                return slice_of(arena, layers.index(layer), (rows, experts.experts_per_token))

            self._routed = RoutingCapture(
                lambda i: ExpertRouting(of_layer(chosen, i), of_layer(gates, i)),
                lambda i: of_layer(lengths, i),
                chosen,
                gates,
                lengths,
            )
        return self._routed

    def last_hidden(self, n_rows: int) -> Tensor:
        """Return (n_rows, width) for the last hidden state of every row."""
        name, width = "inspect.last_hidden", padded(self._config.hidden_size)
        if name not in self._buffers:
            self._buffers[name] = self._memory.zeros(name, (self._memory.max_rows, width))
        return slice_of(self._buffers[name], 0, (n_rows, width))

    def unfused(self) -> Unfused:
        """Return the buffers for the parts of fused dispatches."""
        if self._unfused is None:
            config, zeros = self._config, self._memory.zeros
            n_heads, inner = config.n_heads + 2 * config.n_kv_heads, config.intermediate_size
            width = padded(config.hidden_size)
            gate_up = zeros("inspect.gate_up", (1, padded(2 * inner)))
            self._unfused = Unfused(
                attn_norm=zeros("inspect.attn_norm", (1, width)),
                mlp_norm=zeros("inspect.mlp_norm", (1, width)),
                qkv=zeros("inspect.qkv", (1, padded(n_heads * config.head_dim))),
                gate_up=gate_up,
                up=slice_of(gate_up, 0, (1, padded(inner))),
                head_out=zeros("inspect.head_out", (config.n_heads, width)),
            )
        return self._unfused

    def _buffer(
        self, name: str, n_parts: int, n_rows: int, width: int, dtype: str = "f32"
    ) -> Tensor:
        """Return (n_parts, n_rows · width, rounded up), at the beginning of a buffer with room for
        the largest bucket."""
        if name not in self._buffers:
            shape = (n_parts, aligned(self.max_rows * width))
            self._buffers[name] = self._memory.zeros(name, shape, dtype)
        part = aligned(n_rows * width)
        buffer = self._buffers[name].buffer
        return Tensor(name, buffer, (n_parts, part), dtype, n_parts * part * 4)


def captured_rows(config: ModelConfig, memory: Memory) -> int:
    """Return the largest bucket whose streams fit in an arena; two rows always have to fit."""
    row = (config.n_layers + 1) * padded(config.hidden_size) * 4
    policy = memory.device.policy
    share = policy.capture_share * (memory.n_bytes["weights"] + memory.n_bytes["kv_cache"])
    wanted = min(max(LEAST_CAPTURE_BYTES, share), policy.capture_bytes)
    limit = int(min(wanted, memory.device.max_binding_bytes)) // row
    return max(b for b in ROW_BUCKETS if b <= max(FEWEST_ROWS, min(limit, memory.max_rows)))


def _weights_room(config: ModelConfig, context: int, memory: Memory) -> int:
    wanted = aligned(config.n_heads * max(context, memory.max_rows))
    most = min(WEIGHTS_BYTES, memory.device.max_binding_bytes) // (4 * config.n_layers)
    return min(wanted, most // ALIGNED_FLOATS * ALIGNED_FLOATS)


def aligned(n_floats: int) -> int:
    return -(-n_floats // ALIGNED_FLOATS) * ALIGNED_FLOATS


def slice_of(arena: Tensor, i: int, shape: tuple[int, int]) -> Tensor:
    """Return the i-th part of an arena as a tensor of its own."""
    n_bytes, offset = shape[0] * shape[1] * 4, i * arena.shape[1] * 4
    return Tensor(f"{arena.name}[{i}]", arena.buffer, shape, arena.dtype, n_bytes, offset)
