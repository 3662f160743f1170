"""How the KV cache is cut into blocks. Host logic only.

Keys and values live in fixed blocks of `BLOCK_TOKENS` tokens (Kwon et al. 2023, "Efficient Memory
Management for Large Language Model Serving with PagedAttention"). A block table names the blocks of
a sequence in order; sequences of any length share the cache without moving.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpu.config import ModelConfig
from gpu.errors import DeviceError

BLOCK_TOKENS = 16
DEFAULT_BUDGET_BYTES = 512 << 20
ITEM_BYTES = {"f32": 4, "f16": 2}


@dataclass(frozen=True, slots=True)
class KvShape:
    """How the cache is cut. `max_blocks`: blocks of the longest sequence."""

    n_blocks: int
    context: int

    @property
    def max_blocks(self) -> int:
        return blocks_for(self.context)


def blocks_for(n_tokens: int) -> int:
    """How many blocks `n_tokens` tokens fill."""
    return -(-n_tokens // BLOCK_TOKENS)


def block_bytes(config: ModelConfig, dtype: str) -> int:
    """Bytes of one block: keys and values of all layers."""
    per_token = 2 * config.n_layers * config.n_kv_heads * config.head_dim
    return per_token * BLOCK_TOKENS * ITEM_BYTES[dtype]


def fit(
    config: ModelConfig,
    dtype: str,
    n_slots: int,
    *,
    context: int | None = None,
    budget_bytes: int | None = None,
    max_binding_bytes: int | None = None,
) -> KvShape:
    """How many blocks to make, and the context they allow.

    Wanted: `n_slots` sequences of `context` tokens (None: what the model was made for, or what the
    budget holds if that is less). Raises DeviceError with the numbers when a `context` that was
    asked for does not fit the budget or the device.
    """
    per_block = block_bytes(config, dtype)
    budget = DEFAULT_BUDGET_BYTES if budget_bytes is None else budget_bytes
    affordable = budget // per_block
    if max_binding_bytes is not None:  # one layer's keys are one buffer
        affordable = min(affordable, max_binding_bytes // (per_block // (2 * config.n_layers)))
    wanted = config.context if context is None else context
    if wanted > config.context:
        raise DeviceError(
            f"a context of {wanted} tokens was asked for, but the model was made for "
            f"{config.context} at most"
        )
    held = affordable * BLOCK_TOKENS
    if held < wanted and (context is not None or held < BLOCK_TOKENS):
        raise DeviceError(
            f"a context of {wanted} tokens needs {blocks_for(wanted)} KV blocks of "
            f"{per_block:,} bytes, but the budget of {budget:,} bytes and the device's buffers "
            f"hold {affordable} ({held} tokens); ask for a shorter --context or more --kv-memory"
        )
    context = min(wanted, held)
    return KvShape(min(affordable, n_slots * blocks_for(context)), context)
