"""Sizes of the paged KV cache. Host logic only.

Keys and values are stored in fixed blocks of `BLOCK_TOKENS` tokens (Kwon et al. 2023, "Efficient
Memory Management for Large Language Model Serving with PagedAttention"). A block table lists the
blocks of a sequence in order, so sequences of any length share the cache without being moved.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpu.config import ModelConfig
from gpu.errors import DeviceError
from gpu.kv.formats import CHUNK, KV_FORMATS, KvStorage, kv_format
from gpu.step import MAX_ROWS

BLOCK_TOKENS = 16
DEFAULT_KV_MEMORY_BYTES = 512 << 20


@dataclass(frozen=True, slots=True)
class KvShape:
    """Number of blocks and context length of the cache."""

    n_blocks: int
    context: int

    @property
    def max_blocks(self) -> int:
        """Blocks of the longest sequence."""
        return blocks_for(self.context)


def blocks_for(n_tokens: int) -> int:
    """Return how many blocks `n_tokens` tokens need."""
    return -(-n_tokens // BLOCK_TOKENS)


def block_bytes(config: ModelConfig, dtype: str) -> int:
    """Return the bytes of one block: keys and values of all layers in the KV format `dtype`.

    Raises ModelError for an unknown format, or one that cannot hold this model's heads.
    """
    format = kv_format(dtype)
    return config.n_layers * sum(pool_block_bytes(config, s) for s in (format.keys, format.values))


def bytes_by_format(config: ModelConfig) -> dict[str, int]:
    """Return `block_bytes` of every KV format that can hold this model's heads."""
    return {
        name: block_bytes(config, name)
        for name, format in KV_FORMATS.items()
        if not format.packed or config.head_dim % CHUNK == 0
    }


def token_bytes_by_format(config: ModelConfig) -> dict[str, int]:
    """Return the bytes per token of every KV format that can hold this model's heads."""
    return {name: n_bytes // BLOCK_TOKENS for name, n_bytes in bytes_by_format(config).items()}


def pool_block_bytes(config: ModelConfig, storage: KvStorage) -> int:
    """Return the bytes of one block in one pool: keys, or values, of one layer."""
    return config.n_kv_heads * BLOCK_TOKENS * storage.head_bytes(config.head_dim)


def fit_kv_cache(
    config: ModelConfig,
    dtype: str,
    slots: int,
    *,
    context: int | None = None,
    kv_memory_bytes: int | None = None,
    max_binding_bytes: int | None = None,
) -> KvShape:
    """Return the number of blocks to allocate, and the context they allow.

    They hold `slots` sequences of `context` tokens each (None: the model's own context, or what
    `kv_memory_bytes` holds if that is less). Of a sequence in a model whose layers all have a
    sliding window, only the window and the rows of a step are held. Raises DeviceError with the
    numbers when a requested `context` does not fit the memory or the device's buffers.
    """
    per_block = block_bytes(config, dtype)
    budget = DEFAULT_KV_MEMORY_BYTES if kv_memory_bytes is None else kv_memory_bytes
    affordable = budget // per_block
    if max_binding_bytes is not None:  # one layer's keys are one buffer, its values another
        format = kv_format(dtype)
        largest = max(pool_block_bytes(config, s) for s in (format.keys, format.values))
        affordable = min(affordable, max_binding_bytes // largest)
    wanted = config.context if context is None else context
    if wanted > config.context:
        raise DeviceError(
            f"a context of {wanted} tokens was requested, but the model supports at most "
            f"{config.context}; use a shorter --context"
        )
    held = wanted if config.largest_window is None else min(wanted, held_tokens(config))
    capacity = affordable * BLOCK_TOKENS
    if capacity < held and (context is not None or capacity < BLOCK_TOKENS):
        raise DeviceError(
            f"a context of {wanted} tokens needs {blocks_for(held)} KV blocks of "
            f"{per_block:,} bytes, but the budget of {budget:,} bytes and the device's buffers "
            f"hold {affordable} ({capacity} tokens); use a shorter --context, more --kv-memory or "
            "fewer bits with --kv-dtype"
        )
    context = wanted if capacity >= held else min(wanted, capacity)
    return KvShape(min(affordable, slots * blocks_for(min(context, held))), context)


def held_tokens(config: ModelConfig) -> int:
    """Return how many tokens a sequence holds at most in a model with `largest_window`: those of
    the window, of a step, and of the blocks at both ends."""
    assert config.largest_window is not None
    return config.largest_window + MAX_ROWS + 2 * BLOCK_TOKENS
