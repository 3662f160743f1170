"""Copies of KV blocks that the device is told to make, in order. Host logic only."""

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


KvCopy = BlockCopy | HostStore | HostLoad
