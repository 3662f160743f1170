"""Copies of KV blocks for the device to make, in order. Host logic only."""

from __future__ import annotations

from typing import NamedTuple


class BlockCopy(NamedTuple):
    """Copy of one device block to another."""

    source: int
    destination: int


class HostStore(NamedTuple):
    """Copy of a device block to a place in host memory, before the block is overwritten."""

    block: int
    place: int


class HostLoad(NamedTuple):
    """Copy of a place in host memory to a device block."""

    place: int
    block: int


class TokenMove(NamedTuple):
    """Move of a token to another position: its key is rotated by `shift` positions, its value
    copied. A place is block · BLOCK_TOKENS + the token's place in the block."""

    source: int
    destination: int
    shift: int


class TokenMoves(NamedTuple):
    """Moves of tokens in the layers of a group that are made at once: no destination is a
    source."""

    moves: tuple[TokenMove, ...]
    group: int = 0


KvCopy = BlockCopy | HostStore | HostLoad | TokenMoves
