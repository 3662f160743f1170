"""Difference of a result and its reference, held to a bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

DENORMAL = 1e-36
"""Allowed whatever the bound is: devices may flush numbers near the smallest normal float32 to
zero."""


class WrongResult(AssertionError):
    """A result differs from its reference by more than its bound, or lies in the wrong place."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Outcome of one comparison or several.

    error     largest |got - want|, relative to the largest number of the reference or 1
    of_bound  largest error relative to its bound; more than 1 is wrong
    numbers   how many numbers were compared
    wrong     what is wrong; "" if nothing is
    """

    error: float = 0.0
    of_bound: float = 0.0
    numbers: int = 0
    wrong: str = ""


def difference(
    got: npt.NDArray[Any], want: npt.NDArray[Any], bound: npt.NDArray[Any] | float
) -> Difference:
    """Compare |got - want| with `bound`. A NaN is wrong."""
    want, got = np.asarray(want, np.float64), np.asarray(got, np.float64)
    if got.shape != want.shape:
        return Difference(wrong=f"shape {got.shape} instead of {want.shape}")
    error = np.abs(got - want)
    bounds = np.broadcast_to(bound, want.shape) + DENORMAL
    ratio = error / bounds
    largest, of_bound = _largest(error), _largest(ratio)
    is_wrong, wrong = ~(error <= bounds), ""
    if is_wrong.any():
        size = np.where(np.isnan(ratio), np.inf, ratio)
        at = tuple(int(i) for i in np.unravel_index(np.argmax(size), size.shape))
        wrong = (
            f"{is_wrong.sum()} of {is_wrong.size} numbers are wrong, the worst at {at}: "
            f"{got[at]:g} instead of {want[at]:g} (bound {bounds[at]:.2g})"
        )
    relative = largest / max(_largest(np.abs(want)), 1.0)
    return Difference(relative, of_bound, error.size, wrong)


def _largest(values: npt.NDArray[Any]) -> float:
    """Return the largest of the numbers that are finite."""
    finite = values[np.isfinite(values)]
    return float(finite.max()) if finite.size else 0.0
