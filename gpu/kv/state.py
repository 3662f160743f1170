"""Snapshot of the KV cache for display: plain data that also travels over a pipe."""

from __future__ import annotations

import msgspec


class KvState(msgspec.Struct, frozen=True):
    """State of every block, and totals of all runs. `owners`, `first`, `n_found` and `used` have
    one entry per block.

    owners   runs that use the block; 0: it is free
    first    position of its first token in its text; −1: it holds no tokens
    n_found  number of its tokens in the prefix cache; 0: none. A free cached block is kept until
             its memory is needed
    used     event number of its last allocation, match or release: larger is later; 0: never

    prompt_tokens, reused_tokens  prompt tokens of all runs so far, and how many were cached
    copies    blocks copied because a text diverged from another inside one
    evictions cached blocks that were overwritten
    host_blocks, used_host_blocks  places for blocks in host memory, and those in use
    stored, loaded  blocks copied to host memory so far, and back
    moved_tokens  prompt tokens so far whose keys were moved from elsewhere (`gpu.kv.cache_reuse`)
    tables    of every run that has blocks, its number and its blocks in the order of its text
    groups    of every block, the group of layers that it is for (`gpu.kv.groups`); −1: none. () if
              all layers share their blocks and keep the whole text
    """

    block_tokens: int
    owners: tuple[int, ...]
    first: tuple[int, ...]
    n_found: tuple[int, ...]
    used: tuple[int, ...]
    prompt_tokens: int
    reused_tokens: int
    copies: int
    evictions: int
    host_blocks: int = 0
    used_host_blocks: int = 0
    stored: int = 0
    loaded: int = 0
    moved_tokens: int = 0
    tables: tuple[tuple[int, tuple[int, ...]], ...] = ()
    groups: tuple[int, ...] = ()
