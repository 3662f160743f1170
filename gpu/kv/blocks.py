"""How the KV cache is cut into blocks. Host logic only.

Keys and values live in fixed blocks of `BLOCK_TOKENS` tokens (Kwon et al. 2023, "Efficient Memory
Management for Large Language Model Serving with PagedAttention"). A block table names the blocks of
a sequence in order; sequences of any length share the cache without moving.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpu.config import ModelConfig
from gpu.errors import DeviceError
from gpu.kv.formats import CHUNK, KV_FORMATS, Storage, kv_format

BLOCK_TOKENS = 16
DEFAULT_BUDGET_BYTES = 512 << 20


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
    """Bytes of one block: keys and values of all layers, as the KV format `dtype` stores them.
    Raises ModelError for a format that is none, or cannot hold heads of this model."""
    format = kv_format(dtype)
    return config.n_layers * sum(pool_block_bytes(config, s) for s in (format.keys, format.values))


def bytes_by_format(config: ModelConfig) -> dict[str, int]:
    """`block_bytes` of every KV format that can hold this model's heads."""
    return {
        name: block_bytes(config, name)
        for name, format in KV_FORMATS.items()
        if not format.packed or config.head_dim % CHUNK == 0
    }


def token_bytes_by_format(config: ModelConfig) -> dict[str, int]:
    """What one token takes in every KV format that can hold this model's heads."""
    return {name: n_bytes // BLOCK_TOKENS for name, n_bytes in bytes_by_format(config).items()}


def pool_block_bytes(config: ModelConfig, storage: Storage) -> int:
    """Bytes of one block in one pool: keys, or values, of one layer."""
    return config.n_kv_heads * BLOCK_TOKENS * storage.head_bytes(config.head_dim)


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
    if max_binding_bytes is not None:  # one layer's keys are one buffer, its values another
        format = kv_format(dtype)
        largest = max(pool_block_bytes(config, s) for s in (format.keys, format.values))
        affordable = min(affordable, max_binding_bytes // largest)
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
            f"hold {affordable} ({held} tokens); ask for a shorter --context, more --kv-memory or "
            "fewer bits with --kv-dtype"
        )
    context = min(wanted, held)
    return KvShape(min(affordable, n_slots * blocks_for(context)), context)
