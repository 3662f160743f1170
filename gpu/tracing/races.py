"""Races between the lanes of a workgroup.

Two lanes race if both access one place of memory in one phase (between the same two barriers), one
of them writes, and not both do so atomically. `workgroupBarrier` orders accesses to workgroup
memory only, so in storage memory a whole run counts as one phase.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpu.tracing.tracer import Ints, Trace


@dataclass(frozen=True, slots=True)
class Race:
    """A word that lanes race for.

    word   counted from the start of the variable
    lanes  the least and the greatest lane with an access
    texts  the accesses as they are written in the source
    """

    variable: str
    word: int
    phase: int
    lanes: tuple[int, int]
    texts: tuple[str, ...]

    def __str__(self) -> str:
        where = f"word {self.word} of {self.variable}, phase {self.phase}"
        between = f"lanes {self.lanes[0]} to {self.lanes[1]}"
        return f"{where}: {between} race in {', '.join(self.texts)}"


def races(trace: Trace) -> list[Race]:
    """Return the words that lanes of a traced workgroup race for."""
    trace, word = _by_words(trace)
    names = sorted({site.variable for site in trace.sites})
    variable = np.array([names.index(site.variable) for site in trace.sites], int)[trace.site]
    phased = np.array([site.space == "workgroup" for site in trace.sites], bool)[trace.site]
    phase = np.where(phased, trace.phase, 0)
    places, of_place = np.unique(np.stack([variable, phase, word]), axis=1, return_inverse=True)
    of_place = of_place.reshape(-1)
    n = places.shape[1]
    first, last = np.full(n, trace.n_lanes), np.full(n, -1)
    np.minimum.at(first, of_place, trace.lane)
    np.maximum.at(last, of_place, trace.lane)
    reads, writes, updates, atomics = (
        _any_of(trace, kind, of_place, n) for kind in ("read", "write", "update", "atomic")
    )
    wrong = (first != last) & (writes | updates | (atomics & reads))
    return [
        Race(
            names[places[0, at]],
            int(places[2, at]),
            int(places[1, at]),
            (int(first[at]), int(last[at])),
            _texts(trace, of_place == at),
        )
        for at in np.flatnonzero(wrong)
    ]


def _by_words(trace: Trace) -> tuple[Trace, Ints]:
    """Return a trace with an access for each word, and the words."""
    n_words = np.array([site.n_bytes // 4 for site in trace.sites], int)[trace.site]
    each = np.repeat(np.arange(len(trace.site)), n_words)
    within = np.arange(len(each)) - np.repeat(np.cumsum(n_words) - n_words, n_words)
    word = (trace.index * n_words)[each] + within
    parts = trace.lane[each], trace.phase[each], trace.site[each], trace.index[each]
    return Trace(trace.sites, trace.n_lanes, *parts), word


def _any_of(trace: Trace, kind: str, of_place: Ints, n: int) -> np.ndarray:
    """Return for each place whether any access to it is of this kind."""
    is_kind = np.array([site.kind == kind for site in trace.sites], bool)[trace.site]
    return np.bincount(of_place, is_kind, n) > 0


def _texts(trace: Trace, chosen: np.ndarray) -> tuple[str, ...]:
    sites = (trace.sites[i] for i in np.unique(trace.site[chosen]))
    return tuple(sorted({f"{site.kind} {site.text}" for site in sites}))
