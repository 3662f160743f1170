"""Processor time of processes that a benchmark has started, from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def descendants_seconds(mark: bytes) -> float | None:
    """Return the processor time of all descendants of this process whose command line contains
    `mark`; None without /proc."""
    proc = Path("/proc")
    if not (proc / "self" / "stat").exists():
        return None
    parents, ticks = {}, {}
    for stat in proc.glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            command = (stat.parent / "cmdline").read_bytes()
        except OSError:  # the process has ended
            continue
        pid = int(stat.parent.name)
        parents[pid] = int(fields[1])
        if mark in command:
            ticks[pid] = int(fields[11]) + int(fields[12])
    ours = (n for pid, n in ticks.items() if os.getpid() in _ancestors(pid, parents))
    return sum(ours) / os.sysconf("SC_CLK_TCK")


def _ancestors(pid: int, parents: dict[int, int]) -> Iterable[int]:
    while pid := parents.get(pid, 0):
        yield pid
