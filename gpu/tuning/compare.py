"""Compares tilings on a device whose speed changes while it is measured.

A GPU's clocks rise under load and fall when it waits, as it does while a kernel compiles. So all
candidates are compiled first. Then the device is kept busy, and every timing of a candidate lies
between two of the reference, the default. If the two differ, the clocks or another program moved,
and the timing is dropped.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpu.errors import DeviceError
from gpu.webgpu.tiling import Tuning

MOST_LOSS = 1.03
"""Times within this factor count as equal."""

Clock = Callable[[], float]


class Timer(Protocol):
    """Times work of some number of rows on a device."""

    def begin(self, tuning: Tuning, n_rows: int) -> str:
        """Compile and run the work; return what is wrong with its results, or "". The first tuning
        is what others are checked against."""
        ...

    def warm_up(self, tuning: Tuning, n_rows: int, seconds: float) -> None:
        """Keep the device busy for `seconds` with what `seconds` will time."""
        ...

    def seconds(self, tuning: Tuning, n_rows: int) -> float:
        """Return the seconds that the work takes."""
        ...


@dataclass(frozen=True, slots=True)
class Rounds:
    """How often candidates are timed, and when a timing counts.

    warm_s     seconds of load before the first
    max_drift  most by which the reference may move, as a share of its time. None: there are no
               clocks, and other programs make a timing only longer, so the least of all count
    most       rounds, if the time suffices
    least      timings of a candidate that count, else it is not measurable
    """

    warm_s: float
    max_drift: float | None
    most: int
    least: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """Result of comparing candidates with a reference.

    seconds   of the reference, by rows
    speedups  of each candidate that could be measured, by rows
    faults    what was wrong with the results of others
    n_late    candidates for which the time did not suffice
    n_moved   candidates for which the reference moved in too many rounds
    """

    seconds: Mapping[int, float]
    speedups: Mapping[Tuning, Mapping[int, float]]
    faults: Mapping[Tuning, str]
    n_late: int
    n_moved: int

    def best(self, least_gain: float = 0.0) -> Tuning | None:
        """Return the candidate that gains most with the first number of rows, if that is
        `least_gain`, of those that lose nothing with the others."""
        gains = {
            tuning: first
            for tuning, (first, *others) in ((t, s.values()) for t, s in self.speedups.items())
            if first >= least_gain and all(other * MOST_LOSS >= 1 for other in others)
        }
        return max(gains, key=lambda tuning: gains[tuning], default=None)


def compare(
    timer: Timer,
    reference: Tuning,
    candidates: Sequence[Tuning],
    rows: Sequence[int],
    rounds: Rounds,
    deadline: float,
    clock: Clock = time.perf_counter,
) -> Comparison:
    """Time the candidates in turns with `reference`, once at least, until `deadline` by `clock`.

    A candidate that has begun to compile by then is finished. Raises DeviceError if the reference
    does not run.
    """
    live, faults, n_late = list[Tuning](), dict[Tuning, str](), 0
    for tuning in (reference, *candidates):
        if tuning != reference and clock() >= deadline:
            n_late += 1
            continue
        fault = next((f for n in rows if (f := timer.begin(tuning, n))), "")
        if not fault:
            live.append(tuning)
        elif tuning == reference:
            raise DeviceError(fault)
        else:
            faults[tuning] = fault
    turns = _Turns(timer, live, rows, rounds)
    for n in rows:
        timer.warm_up(reference, n, rounds.warm_s)
    is_late = False
    for _ in range(rounds.most if len(live) > 1 else 1):
        for n in rows:
            turns.take(n)
        if is_late := clock() >= deadline:
            break
    speedups = turns.speedups()
    n_missing = len(live) - 1 - len(speedups)
    n_moved = 0 if is_late else n_missing
    return Comparison(turns.seconds(), speedups, faults, n_late + n_missing - n_moved, n_moved)


class _Turns:
    """Timings of candidates between those of the reference, the first of `live`."""

    def __init__(
        self, timer: Timer, live: Sequence[Tuning], rows: Sequence[int], rounds: Rounds
    ) -> None:
        self._timer = timer
        self._reference, *self._candidates = live
        self._rounds = rounds
        self._turns = {t: {n: list[tuple[float, float, float]]() for n in rows} for t in live}

    def take(self, n: int) -> None:
        """Time every candidate once with `n` rows, between two timings of the reference."""
        before = self._timer.seconds(self._reference, n)
        self._turns[self._reference][n].append((before, before, before))
        for tuning in self._candidates:
            took = self._timer.seconds(tuning, n)
            after = self._timer.seconds(self._reference, n)
            self._turns[tuning][n].append((before, took, after))
            before = after

    def seconds(self) -> dict[int, float]:
        turns = self._turns[self._reference].items()
        return {n: statistics.median(took for _, took, _ in of_rows) for n, of_rows in turns}

    def speedups(self) -> dict[Tuning, dict[int, float]]:
        found = {}
        for tuning in self._candidates:
            by_rows = {n: self._speedup(turns) for n, turns in self._turns[tuning].items()}
            measured = {n: speedup for n, speedup in by_rows.items() if speedup is not None}
            if len(measured) == len(by_rows):
                found[tuning] = measured
        return found

    def _speedup(self, turns: Sequence[tuple[float, float, float]]) -> float | None:
        """Return the speedup in these turns; None: too few of them count."""
        most = self._rounds.max_drift
        if most is None:
            return min(min(before, after) for before, _, after in turns) / min(
                t for _, t, _ in turns
            )
        ratios = [
            (before + after) / (2 * took)
            for before, took, after in turns
            if abs(after - before) <= most * min(before, after)
        ]
        return statistics.median(ratios) if len(ratios) >= self._rounds.least else None
