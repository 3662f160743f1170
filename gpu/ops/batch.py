"""Tensors and constants that all operations of a step share."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gpu.config import ModelConfig
from gpu.kv.blocks import BLOCK_TOKENS
from gpu.kv.pools import KvPools
from gpu.webgpu.buffers import Memory, Tensor, padded
from gpu.webgpu.kernels import Number

STATE_FLOATS = 3
"""Floats of a State in shaders/lib/softmax_state.wgsl: maximum, sum, weighted."""


@dataclass(frozen=True, slots=True)
class KvSplits:
    """Partial results of attention over `n` splits of a long context, for steps of few rows.

    values  (≥ n · rows, padded query width); the last words count the splits that are left
    states  (≥ n · rows, n_heads, STATE_FLOATS); rows: `DevicePolicy.split_rows`
    """

    n: int
    values: Tensor
    states: Tensor

    @classmethod
    def make(cls, config: ModelConfig, n: int, memory: Memory) -> KvSplits:
        """Allocate for `n` splits."""
        most, width = memory.device.policy.split_rows, padded(config.n_heads * config.head_dim)
        rows, counts = n * most, n_workgroups(most * config.n_heads, width)
        return cls(
            n,
            memory.zeros("attention.values", (rows + counts, width)),
            memory.zeros("attention.states", (rows, config.n_heads, STATE_FLOATS)),
        )

    @property
    def counts_at(self) -> int:
        """Number of the first word of `values` that counts splits."""
        return self.states.shape[0] * self.values.shape[1]

    def clear_counts(self, memory: Memory) -> None:
        """Let no split be left."""
        at = 4 * self.counts_at
        memory.write(self.values, np.zeros((self.values.n_bytes - at) // 4, np.float32), at=at)


@dataclass(frozen=True, slots=True)
class KvStaging:
    """Keys and values of a step's rows in the current layer before they are quantised into the
    cache: (max_rows, n_kv_heads, head_dim) float32 each."""

    keys: Tensor
    values: Tensor

    @classmethod
    def make(cls, config: ModelConfig, max_rows: int, memory: Memory) -> KvStaging:
        shape = (max_rows, config.n_kv_heads, config.head_dim)
        return cls(memory.zeros("new.keys", shape), memory.zeros("new.values", shape))


@dataclass(frozen=True, slots=True)
class RmsNormSplit:
    """Result of the op `rms_norm_split`, read by the next matmul.

    rows    (max_rows, padded width)
    scales  (max_rows,)
    """

    rows: Tensor
    scales: Tensor

    @classmethod
    def make(cls, width: int, max_rows: int, memory: Memory) -> RmsNormSplit:
        return cls(
            memory.zeros("norm.rows", (max_rows, padded(width))),
            memory.zeros("norm.scales", (max_rows,)),
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """Tensors and sizes that all ops of a step share.

    step            uniform buffer of the step
    n_rows          rows that the plan is recorded for
    n_samples       samples that the plan is recorded for
    splits          partial results of split attention; None: contexts are not split
    kv_staging      new keys and values before quantisation; None: they go straight to the cache
    quantized_rows  int8 rows for matmuls with q8 and q4 weights; None: these take float32
    rms_norm_split  normalised rows for matmuls of many rows; None: the norm is always folded in
    apart           every row is of another sequence, so that no two share keys
    text_ends       (max_rows,) u32: last positions of the rows' texts in an encoder, whose rows see
                    keys after their own; None: rows see keys up to their own
    group_steps     uniform buffers of the step for the KV groups after the first, whose rows name
                    the blocks of the group; none for a cache that is written from staging rows
    """

    step: Tensor
    n_rows: int
    n_samples: int
    splits: KvSplits | None = None
    kv_staging: KvStaging | None = None
    quantized_rows: Tensor | None = None
    rms_norm_split: RmsNormSplit | None = None
    apart: bool = False
    text_ends: Tensor | None = None
    group_steps: tuple[Tensor, ...] = ()

    def of_group(self, group: int) -> Batch:
        """Return the batch for ops that write keys and values of a layer in this KV group."""
        if not (group and self.group_steps):
            return self
        return replace(self, step=self.group_steps[group - 1])


def paging(config: ModelConfig, pools: KvPools) -> dict[str, Number]:
    """Return the constants of shaders/lib/paging.wgsl."""
    return {
        "BLOCK_TOKENS": BLOCK_TOKENS,
        "MAX_BLOCKS": pools.shape.max_blocks,
        "N_KV_HEADS": config.n_kv_heads,
    }


def n_workgroups(n: int, size: int) -> int:
    """Return how many workgroups of `size` cover `n`."""
    return -(-n // size)


def expect_shape(tensor: Tensor, last: tuple[int, ...], label: str) -> None:
    """Raise ValueError unless the last dimensions of `tensor` are `last`."""
    if tensor.shape[-len(last) :] != last:
        raise ValueError(f"{label}: {tensor!r} should have a shape that ends in {list(last)}")
