"""What every operation of a step shares."""

from __future__ import annotations

from dataclasses import dataclass

from gpu.config import ModelConfig
from gpu.kv.blocks import BLOCK_TOKENS
from gpu.kv.pools import KvPools
from gpu.ops.attention_cut import FEW_ROWS
from gpu.webgpu.buffers import Memory, Tensor, padded
from gpu.webgpu.kernels import Number

STATE_FLOATS = 3
"""Of a head's State in shaders/lib/softmax_state.wgsl: maximum, sum, weighted."""


@dataclass(frozen=True, slots=True)
class Splits:
    """What the splits of long contexts leave, for a step of few rows whose attention is spread over
    `n` workgroups a row.

    values  (≥ n · FEW_ROWS, padded query width)
    states  (≥ n · FEW_ROWS, n_heads, STATE_FLOATS)
    """

    n: int
    values: Tensor
    states: Tensor

    @classmethod
    def make(cls, config: ModelConfig, n: int, memory: Memory) -> Splits:
        """Room for `n` splits."""
        rows, width = n * FEW_ROWS, padded(config.n_heads * config.head_dim)
        return cls(
            n,
            memory.zeros("attention.values", (rows, width)),
            memory.zeros("attention.states", (rows, config.n_heads, STATE_FLOATS)),
        )


@dataclass(frozen=True, slots=True)
class NewHeads:
    """Keys and values of a step's rows on their way into a quantised cache, of the layer that is
    computed: (max_rows, n_kv_heads, head_dim) float32 each."""

    keys: Tensor
    values: Tensor

    @classmethod
    def make(cls, config: ModelConfig, max_rows: int, memory: Memory) -> NewHeads:
        shape = (max_rows, config.n_kv_heads, config.head_dim)
        return cls(memory.zeros("new.keys", shape), memory.zeros("new.values", shape))


@dataclass(frozen=True, slots=True)
class NormParts:
    """What `norm_parts` leaves for the product after it: rows (max_rows, padded width) and scales
    (max_rows,)."""

    rows: Tensor
    scales: Tensor

    @classmethod
    def make(cls, width: int, max_rows: int, memory: Memory) -> NormParts:
        return cls(
            memory.zeros("norm.rows", (max_rows, padded(width))),
            memory.zeros("norm.scales", (max_rows,)),
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """What every op of a step shares: the step's uniform buffer, how many rows and samples the
    plan is recorded for, stand-ins for bindings an op does not use, the splits of long contexts
    (None: every workgroup of attention walks its whole context), where new keys and values wait
    (None: they go right into the cache), where rows lie as bytes for products with q8 and q4
    weights (None: these take float32), and where the parts of a norm do (None: products of many
    rows have it folded in as those of few do)."""

    step: Tensor
    n_rows: int
    n_samples: int
    unread: Tensor
    unwritten: Tensor
    splits: Splits | None = None
    new_heads: NewHeads | None = None
    byte_rows: Tensor | None = None
    norm_parts: NormParts | None = None

    @classmethod
    def make(cls, memory: Memory, step: Tensor, n_rows: int, n_samples: int) -> Batch:
        return cls(
            step, n_rows, n_samples, memory.zeros("unread", (8,)), memory.zeros("unwritten", (8,))
        )


def paging(config: ModelConfig, pools: KvPools) -> dict[str, Number]:
    """The constants of shaders/lib/paging.wgsl."""
    return {
        "BLOCK_TOKENS": BLOCK_TOKENS,
        "MAX_BLOCKS": pools.shape.max_blocks,
        "N_KV_HEADS": config.n_kv_heads,
    }


def groups(n: int, size: int) -> int:
    """Workgroups of `size` that cover `n`."""
    return -(-n // size)


def expect_shape(tensor: Tensor, last: tuple[int, ...], label: str) -> None:
    """Raises ValueError when the last dimensions of `tensor` are not `last`."""
    if tensor.shape[-len(last) :] != last:
        raise ValueError(f"{label}: {tensor!r} should end in dimensions {list(last)}")
