"""What the KV cache holds at a moment, for people: plain data that also travels over a pipe."""

from __future__ import annotations

import msgspec


class KvState(msgspec.Struct, frozen=True):
    """One entry for each block in `owners`, `first`, `n_found` and `used`, by the block's number.

    owners   how many runs read it; 0: it is free
    first    position of its first token in its text; −1: it holds no text's tokens
    n_found  how many of its tokens can be found; 0: none. Free and found: kept until it is needed
             for something else
    used     when it was last taken, found or given back: the larger, the later; 0: never

    prompt_tokens, reused_tokens  of all runs so far: tokens of their prompts, and how many of those
                                  were found
    copies    blocks copied because a text parted from another inside one
    evictions blocks that could be found until they were needed for something else
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
