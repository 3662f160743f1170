"""Memory instructions of a workgroup, as a GPU executes its lanes in waves.

The n-th access of a lane at a site is taken to be one instruction with the n-th accesses of the
other lanes of its wave. That is exact as long as the lanes of a wave take the same turns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpu.tracing.instrument import Site
from gpu.tracing.tracer import Ints, Trace

LINE = 128
"""Bytes of a cache line; a wave instruction takes a cycle for each line it touches."""
BANKS = 32
"""Banks of workgroup memory, four bytes wide."""


@dataclass(frozen=True, slots=True)
class SiteInstructions:
    """Instructions of one site, over all waves of a workgroup.

    n_instructions  wave instructions
    n_accesses      accesses of single lanes
    n_bytes         bytes, those that several lanes access in one instruction counted once
    n_lines         lines, per instruction
    n_cycles        cycles of workgroup memory: more than `n_ideal_cycles` where lanes meet in a
                    bank
    """

    site: Site
    n_instructions: int
    n_accesses: int
    n_bytes: int
    n_lines: int
    n_cycles: int
    n_ideal_cycles: int

    @property
    def line_use(self) -> float:
        """Share of the bytes of the touched lines that the instructions use."""
        return self.n_bytes / (LINE * self.n_lines)

    @property
    def conflict(self) -> float:
        """Cycles over those without bank conflicts."""
        return self.n_cycles / self.n_ideal_cycles


@dataclass(frozen=True, slots=True)
class Footprint:
    """Memory of one variable that a workgroup accesses, everything counted once."""

    variable: str
    n_bytes: int
    n_lines: int

    @property
    def line_use(self) -> float:
        return self.n_bytes / (LINE * self.n_lines)


def instructions(trace: Trace, wave: int) -> list[SiteInstructions]:
    """Return the instructions of every site that was reached, for waves of `wave` lanes."""
    return [_of_site(trace, int(number), wave) for number in np.unique(trace.site)]


def footprint(trace: Trace, variable: str) -> Footprint:
    """Return what a workgroup accesses of one variable."""
    numbers = [i for i, site in enumerate(trace.sites) if site.variable == variable]
    size = trace.sites[numbers[0]].n_bytes
    index = np.unique(trace.index[np.isin(trace.site, numbers)])
    first, last = index * size, index * size + size - 1
    return Footprint(
        variable,
        len(index) * size,
        len(np.unique(np.concatenate([first // LINE, last // LINE]))),
    )


def _of_site(trace: Trace, number: int, wave: int) -> SiteInstructions:
    site = trace.sites[number]
    chosen = trace.site == number
    lane, index = trace.lane[chosen], trace.index[chosen]
    instruction = _nth_of_lane(lane) * (1 + trace.n_lanes // wave) + lane // wave
    n_instructions = len(np.unique(instruction))
    first, last = index * site.n_bytes, (index + 1) * site.n_bytes - 1
    cycles, ideal = (
        (0, 0) if site.space == "storage" else _cycles(instruction, lane % wave, first, site)
    )
    return SiteInstructions(
        site,
        n_instructions,
        len(lane),
        site.n_bytes * _n_pairs(instruction, index),
        _n_pairs(instruction, first // LINE, last // LINE),
        cycles,
        ideal,
    )


def _nth_of_lane(lane: Ints) -> Ints:
    """Number the accesses of each lane from 0; those of a lane follow each other."""
    begins = np.flatnonzero(np.diff(lane, prepend=-1))
    lengths = np.diff(np.append(begins, len(lane)))
    return np.arange(len(lane)) - np.repeat(begins, lengths)


def _n_pairs(instruction: Ints, *values: Ints) -> int:
    """Return the number of different (instruction, value) pairs."""
    span = 1 + max(int(value.max()) for value in values)
    return len(np.unique(np.concatenate([instruction * span + value for value in values])))


def _cycles(instruction: Ints, lane: Ints, first: Ints, site: Site) -> tuple[int, int]:
    """Return the cycles of workgroup memory, and those without conflicts.

    A load of 4 bytes serves 32 lanes in a cycle, one of 8 bytes 16 lanes, one of 16 bytes 8 lanes.
    Lanes that read one word share it. `lane` is counted in its wave.
    """
    words = site.n_bytes // 4 if site.n_bytes in (8, 16) else 1
    part = np.repeat(instruction * BANKS * words + lane // (BANKS // words), words)
    word = (first[:, None] // 4 + np.arange(words)).reshape(-1)
    span = BANKS * (1 + int(word.max()) // BANKS)
    distinct = np.unique(part * span + word % BANKS * (span // BANKS) + word // BANKS)
    banks, ways = np.unique(distinct // (span // BANKS), return_counts=True)
    begins = np.flatnonzero(np.diff(banks // BANKS, prepend=-1))
    return int(np.maximum.reduceat(ways, begins).sum()), len(begins)
