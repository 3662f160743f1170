"""Operations and bytes of the matrix products and of attention in a step, from a model's config.
`gpu.plans.cost` counts everything that a recorded plan does, which is little more."""

from __future__ import annotations

import msgspec

from gpu.analysis.sizing.model_shape import ModelShape
from gpu.analysis.sizing.parts import (
    EMBEDDING,
    HEAD,
    POSITIONS,
    VECTORS_AND_TABLES,
    Part,
)
from gpu.checkpoint.tensor_names import tensor_map_of
from gpu.config import ModelConfig
from gpu.kv.blocks import token_bytes_by_format


class StepCost(msgspec.Struct, frozen=True):
    """Operations and bytes of a step.

    flops         two for a multiply-add
    weight_bytes  weights read, each once however many rows there are
    kv_bytes      keys and values read and written
    """

    flops: int
    weight_bytes: int
    kv_bytes: int

    @property
    def n_bytes(self) -> int:
        return self.weight_bytes + self.kv_bytes

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.flops / self.n_bytes


class StepCosts:
    """Costs of the steps of a model stored as `dtype`, with keys and values as `kv_dtype`."""

    def __init__(
        self, shape: ModelShape, parts: tuple[Part, ...], dtype: str, kv_dtype: str
    ) -> None:
        self.config = shape.config
        self.row_flops = 2 * sum(
            p.active for p in parts if p.name not in (*VECTORS_AND_TABLES, HEAD)
        )
        """Operations of a row's matrix products, without the output head."""
        self.head_flops = 2 * self.config.vocab_size * self.config.hidden_size
        self.kv_token_bytes = token_bytes_by_format(self.config)[kv_dtype]
        """Bytes of a token's keys and values in all layers."""
        tables = sum(p.token_bytes for p in parts if p.name in (EMBEDDING, POSITIONS))
        self._table_row, self._experts = tables, _expert_bytes(shape, dtype)
        everything = sum(p.token_bytes for p in parts) - tables
        self._dense = everything - round(self._experts * _routed_share(self.config, 1))

    def decode(self, n_users: int, context: int) -> StepCost:
        """Return the cost of writing a token for each of `n_users` texts, which is the last of its
        `context` tokens."""
        n_keys = keys_read(self.config, context)
        rows = n_users * (self.row_flops + self.head_flops)
        layer = self.kv_token_bytes // self.config.n_layers
        return StepCost(
            rows + n_users * _score_flops(self.config) * n_keys,
            self.weight_bytes(n_users),
            n_users * layer * n_keys,
        )

    def prefill(self, n_tokens: int) -> StepCost:
        """Return the cost of reading a prompt of `n_tokens` tokens at once, including the logits of
        the first new token."""
        n_pairs = sum(
            pairs_seen(self.config.sliding_window_of(i), n_tokens)
            for i in range(self.config.n_layers)
        )
        return StepCost(
            n_tokens * self.row_flops + self.head_flops + _score_flops(self.config) * n_pairs,
            self.weight_bytes(n_tokens),
            n_tokens * self.kv_token_bytes,
        )

    def weight_bytes(self, n_rows: int) -> int:
        """Return the bytes of weights that a step of `n_rows` rows reads. Experts count if at least
        one row is routed to them, assuming that all are equally likely."""
        share = _routed_share(self.config, n_rows)
        return self._dense + n_rows * self._table_row + round(self._experts * share)


def keys_read(config: ModelConfig, context: int) -> int:
    """Return how many keys the last of `context` tokens reads, summed over the layers."""
    windows = (config.sliding_window_of(i) for i in range(config.n_layers))
    return sum(min(context, window or context) for window in windows)


def pairs_seen(window: int | None, n_tokens: int) -> int:
    """Return the number of (row, key) pairs of a prompt: row i sees i + 1 keys, or the window."""
    n = min(n_tokens, window or n_tokens)
    return n * (n + 1) // 2 + (n_tokens - n) * n


def _score_flops(config: ModelConfig) -> int:
    """Return the operations of a (row, key) pair of a layer: q · k and the weighted sum of v."""
    return 4 * config.n_heads * config.head_dim


def _routed_share(config: ModelConfig, n_rows: int) -> float:
    """Return the expected share of a layer's experts that `n_rows` rows use."""
    moe = config.experts
    return 1 - (1 - moe.experts_per_token / moe.n_experts) ** n_rows if moe else 1.0


def _expert_bytes(shape: ModelShape, dtype: str) -> int:
    tensors, total = tensor_map_of(shape.config, shape.checkpoint), 0
    for tensor in shape.inventory(dtype).tensors:
        found = tensors.find(tensor.name)
        total += (tensor.device_bytes or 0) if found and found.role.routed else 0
    return total
