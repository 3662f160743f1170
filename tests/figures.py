"""Largest differences between results and references, by name of the result, over a whole test
run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Worst:
    """Largest difference of one result.

    error     largest error, relative to the largest number beside it if that is above 1
    of_bound  largest share of the allowed error
    n         numbers compared
    """

    error: float = 0.0
    of_bound: float = 0.0
    n: int = 0


FIGURES: dict[str, Worst] = {}


def add(result: str, seen: Worst) -> None:
    """Add one comparison, or those of another process."""
    worst = FIGURES.get(result, Worst())
    FIGURES[result] = Worst(
        max(worst.error, seen.error), max(worst.of_bound, seen.of_bound), worst.n + seen.n
    )
