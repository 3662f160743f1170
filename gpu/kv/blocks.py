"""Sizes of the paged KV cache. Host logic only.

Keys and values are stored in fixed blocks of `BLOCK_TOKENS` tokens (Kwon et al. 2023, "Efficient
Memory Management for Large Language Model Serving with PagedAttention"). A block table lists the
blocks of a sequence in order, so sequences of any length share the cache without being moved.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from gpu.config import ModelConfig
from gpu.errors import DeviceError, ModelError
from gpu.kv.formats import CHUNK, KV_FORMATS, KvStorage, kv_format
from gpu.kv.groups import KvGroup, group_size, groups_by_window, single_group
from gpu.step import MAX_ROWS

BLOCK_TOKENS = 16
DEFAULT_KV_MEMORY_BYTES = 512 << 20


@dataclass(frozen=True, slots=True)
class KvShape:
    """Number of blocks, context length and groups of layers of the cache; no groups: all layers
    share a block table."""

    n_blocks: int
    context: int
    groups: tuple[KvGroup, ...] = ()

    @property
    def max_blocks(self) -> int:
        """Blocks of the longest sequence."""
        return blocks_for(self.context)


def blocks_for(n_tokens: int) -> int:
    """Return how many blocks `n_tokens` tokens need."""
    return -(-n_tokens // BLOCK_TOKENS)


ENCODER_TEXTS = 32
"""Most texts of an encoder's pass."""

MAX_ATTENDING = 64
"""Most tokens of a text whose attention is read of an encoder, and of both texts of an
encoder-decoder: it grows with their square."""

ENCODER_SHAPE = KvShape(blocks_for(MAX_ROWS) + ENCODER_TEXTS, MAX_ROWS)
"""Cache of an encoder: the rows of a pass, each text in blocks of its own."""

ENCODER_DECODER_SHAPE = KvShape(blocks_for(MAX_ATTENDING), MAX_ATTENDING)
"""Each cache of an encoder-decoder: of the text it reads, and of the one it writes."""


def block_bytes(config: ModelConfig, dtype: str, groups: tuple[KvGroup, ...] = ()) -> int:
    """Return the bytes of one block: keys and values of a group's layers, or of all layers, in the
    KV format `dtype`.

    Raises ModelError for an unknown format, or one that cannot hold this model's heads.
    """
    format = kv_format(dtype)
    n_layers = group_size(groups) if groups else config.n_layers
    return n_layers * sum(pool_block_bytes(config, s) for s in (format.keys, format.values))


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
    hybrid: bool = False,
) -> KvShape:
    """Return how many KV blocks fit into the memory (vLLM's `num_gpu_blocks`), and the context
    that they allow.

    They hold `slots` sequences of `context` tokens each (None: the model's own context, or what
    `kv_memory_bytes` holds if that is less). Layers with a sliding window hold only the window and
    one step's rows of each sequence. `hybrid`: layers of different windows are in different groups,
    if that saves memory. Raises ModelError for a `context` that the model does not support, and
    DeviceError with the numbers for one that does not fit the memory or the device's buffers.
    """
    wanted = config.context if context is None else context
    if wanted > config.context:
        raise ModelError(
            f"a context of {wanted} tokens was requested, but the model supports at most "
            f"{config.context}; use a shorter --context"
        )
    budget = DEFAULT_KV_MEMORY_BYTES if kv_memory_bytes is None else kv_memory_bytes

    def affordable_in(groups: tuple[KvGroup, ...]) -> int:
        n = budget // block_bytes(config, dtype, groups)
        if max_binding_bytes is None:
            return n
        format = kv_format(dtype)  # a layer's keys are one buffer, its values another
        largest = max(pool_block_bytes(config, s) for s in (format.keys, format.values))
        return min(n, max_binding_bytes // largest)

    one = single_group(config)
    groups = _groups_for(config, wanted) if hybrid else one
    fits = {
        option: affordable_in(option) >= _blocks_to_hold(option, wanted) for option in (groups, one)
    }
    if fits[one] and not fits[groups]:  # rows of a step and padding may take more than is saved
        groups = one
    per_block, affordable = block_bytes(config, dtype, groups), affordable_in(groups)
    needed = _blocks_to_hold(groups, wanted)
    lengths = range(0, wanted + BLOCK_TOKENS, BLOCK_TOKENS)
    fitting = bisect_right(lengths, affordable, key=lambda n: _blocks_to_hold(groups, n)) - 1
    capacity = fitting * BLOCK_TOKENS
    if affordable < needed and (context is not None or capacity < BLOCK_TOKENS):
        raise DeviceError(
            f"a context of {wanted} tokens needs {needed} KV blocks of "
            f"{per_block:,} bytes, but the budget of {budget:,} bytes and the device's buffers "
            f"hold {affordable} ({capacity} tokens); use a shorter --context, more --kv-memory or "
            "fewer bits with --kv-dtype"
        )
    context = wanted if affordable >= needed else min(wanted, capacity)
    return KvShape(min(affordable, slots * _blocks_to_hold(groups, context)), context, groups)


def held_tokens(window: int | None, n_tokens: int) -> int:
    """Return how many of a sequence's `n_tokens` tokens a group holds at most: those of the window,
    of a step, and of the blocks at both ends."""
    return n_tokens if window is None else min(n_tokens, window + MAX_ROWS + 2 * BLOCK_TOKENS)


def text_blocks(window: int | None, n_tokens: int) -> int:
    """Return how many blocks a group holds of a text of `n_tokens` tokens when its last is
    computed."""
    n_left = 0 if window is None else max(0, n_tokens - window) // BLOCK_TOKENS
    return blocks_for(n_tokens) - n_left


def frees_blocks(windows: tuple[int | None, ...]) -> bool:
    """Does a sequence give blocks back while it is written, in any of its groups of layers?"""
    return any(window is not None for window in windows)


def _blocks_to_hold(groups: tuple[KvGroup, ...], n_tokens: int) -> int:
    """Return the blocks that a sequence of `n_tokens` tokens has at most at once."""
    return sum(blocks_for(held_tokens(group.window, n_tokens)) for group in groups)


def _groups_for(config: ModelConfig, context: int) -> tuple[KvGroup, ...]:
    """Return the groups by window, if a text of `context` tokens takes less memory in them than in
    one group of all layers."""

    def layer_blocks(groups: tuple[KvGroup, ...]) -> int:
        return group_size(groups) * sum(text_blocks(group.window, context) for group in groups)

    return min(single_group(config), groups_by_window(config), key=layer_blocks)
