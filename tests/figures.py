"""How close results came to their references, by name of the result, over a whole run of tests."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Worst:
    """error: the largest error seen, relative to the largest number beside it where that is above
    1; of_bound: the largest share of what is allowed; n: numbers compared."""

    error: float = 0.0
    of_bound: float = 0.0
    n: int = 0


FIGURES: dict[str, Worst] = {}


def add(result: str, seen: Worst) -> None:
    """Take one comparison, or what another process saw, into account."""
    worst = FIGURES.get(result, Worst())
    FIGURES[result] = Worst(
        max(worst.error, seen.error), max(worst.of_bound, seen.of_bound), worst.n + seen.n
    )
