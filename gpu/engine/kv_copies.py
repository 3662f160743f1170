"""Submission of KV block copies to a runner."""

from __future__ import annotations

from collections.abc import Iterable

from gpu.kv.copies import BlockCopy, HostLoad, HostStore, KvCopy, TokenMoves
from gpu.runner import Runner


def submit_copies(runner: Runner, copies: Iterable[KvCopy]) -> None:
    """Have blocks copied in order, after the steps submitted so far and before the next."""
    for copy in copies:
        match copy:
            case BlockCopy(source, destination):
                runner.copy_block(source, destination)
            case HostStore(block, place):
                runner.store_block(block, place)
            case HostLoad(place, block):
                runner.load_block(place, block)
            case TokenMoves(moves, group):
                runner.shift_kv(moves, group)
