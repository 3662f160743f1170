"""Adapters of a parameter that has a matrix of every expert of a layer, as PEFT saves them
(`target_parameters`, its class ParamWrapper): A (experts · rank, inputs) expert by expert, and B
(outputs, rank · experts) rank by rank,

    W[e] + (α / r) · Σ B[:, r · experts + e] A[e · rank + r, :]

Before 0.19.1 PEFT took the outputs of such a parameter for its inputs: A is then of its outputs and
B of its inputs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpu.checkpoint.reader import F32

Shape = tuple[int, ...]
TURNED_UNTIL = (0, 19, 0)


@dataclass(frozen=True, slots=True)
class OfAll:
    """Where the matrices of one module lie in those of all `n` experts. `outputs`: of the parameter
    (gate and up are one); `turned`: A is of its outputs, B of its inputs."""

    expert: int
    n: int
    outputs: slice
    turned: bool

    def a(self, a: F32, b: F32) -> F32:
        """(rank, n_in)"""
        return self._of_b(b).T if self.turned else self._of_a(a)

    def b(self, a: F32, b: F32) -> F32:
        """(outputs, rank)"""
        return (self._of_a(a).T if self.turned else self._of_b(b))[self.outputs]

    def _of_a(self, a: F32) -> F32:
        rank = len(a) // self.n
        return a[self.expert * rank : (self.expert + 1) * rank]

    def _of_b(self, b: F32) -> F32:
        return b[:, self.expert :: self.n]


def is_turned(
    a: Shape, b: Shape, n_rows: int, n_out: int, n_in: int, peft_version: str
) -> bool | None:
    """Are A and B, of these shapes and `n_rows` ranks of all experts, turned for a parameter of so
    many outputs and inputs? None: they are none of its. Where both are as many, by the version
    that saved them, which PEFT tells since 0.18."""
    straight = (a, b) == ((n_rows, n_in), (n_out, n_rows))
    turned = (a, b) == ((n_rows, n_out), (n_in, n_rows))
    if straight and turned:
        numbers = [int(number) for number in re.findall(r"\d{1,9}", peft_version)[:3]]
        return tuple(numbers) <= TURNED_UNTIL
    return turned if straight or turned else None
