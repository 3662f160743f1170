"""Adapters of a parameter that holds the matrices of all experts of a layer, as PEFT saves them
(`target_parameters`, its class ParamWrapper).

A (experts · rank, inputs) is stored expert by expert, and B (outputs, rank · experts) rank by rank:

    W[e] + (α / r) · Σ B[:, r · experts + e] A[e · rank + r, :]

PEFT before 0.19.1 swapped inputs and outputs of such a parameter: A is then of its outputs and B of
its inputs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpu.checkpoint.reader import F32

Shape = tuple[int, ...]
SWAPPED_UNTIL = (0, 19, 0)


@dataclass(frozen=True, slots=True)
class ExpertSlice:
    """Slice of one module's matrices in those of all `n` experts.

    outputs  the module's part of the parameter's outputs (gate and up share one parameter)
    swapped  A is of the parameter's outputs, B of its inputs
    """

    expert: int
    n: int
    outputs: slice
    swapped: bool

    def a(self, a: F32, b: F32) -> F32:
        """Return A, (rank, n_in)."""
        return self._of_b(b).T if self.swapped else self._of_a(a)

    def b(self, a: F32, b: F32) -> F32:
        """Return B, (outputs, rank)."""
        return (self._of_a(a).T if self.swapped else self._of_b(b))[self.outputs]

    def _of_a(self, a: F32) -> F32:
        rank = len(a) // self.n
        return a[self.expert * rank : (self.expert + 1) * rank]

    def _of_b(self, b: F32) -> F32:
        return b[:, self.expert :: self.n]


def is_swapped(
    a: Shape, b: Shape, n_rows: int, n_out: int, n_in: int, peft_version: str
) -> bool | None:
    """Return whether A and B have swapped inputs and outputs; None if their shapes fit neither way.

    `n_rows`: ranks of all experts. If both ways fit, the PEFT version that saved them decides,
    which files state since 0.18.
    """
    straight = (a, b) == ((n_rows, n_in), (n_out, n_rows))
    swapped = (a, b) == ((n_rows, n_out), (n_in, n_rows))
    if straight and swapped:
        numbers = [int(number) for number in re.findall(r"\d{1,9}", peft_version)[:3]]
        return tuple(numbers) <= SWAPPED_UNTIL
    return swapped if straight or swapped else None
