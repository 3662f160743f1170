"""Adapters of one matrix of the engine, stacked: their ranks one behind the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpu.checkpoint.laid import Laid
from gpu.checkpoint.reader import F32
from gpu.lora.adapter import Lora

U32 = npt.NDArray[np.uint32]
FOUR = 4
"""Outputs that `gpu.ops.lora` works on together: on the device, b and first are padded to whole
fours."""


@dataclass(frozen=True, slots=True)
class Stack:
    """Of a matrix of `n` outputs × `k` inputs, made of one or more modules of the base (queries,
    keys and values), with R ranks of all adapters together.

    a      (n_modules · R, k): of each module, A of each adapter; zeros where it has none or fewer
           ranks than for another module
    b      (R, n): the columns in the order of the matrix's rows, times α / r
    first  (n,): where in `a` the module of an output begins
    ends   (n_loras,): where among the R ranks those of an adapter end

    Of experts, `a` (n_experts · n_modules · R, k) and `b` (n_experts, R, n) are those of each, one
    behind the other; n_modules is 1 where all modules of an expert have the same A.
    """

    a: F32
    b: F32
    first: U32
    ends: U32

    @classmethod
    def of(
        cls, loras: Sequence[Lora], sources: Sequence[str], lay: Callable[[], Laid], k: int
    ) -> Stack | None:
        """Of a matrix made of these tensors, `lay` tells how; None where no adapter changes it."""
        modules = [source.removesuffix(".weight") for source in sources]
        ranks = [max(lora.rank(module) for module in modules) for lora in loras]
        ends = np.cumsum(ranks)
        n_ranks = int(ends[-1])
        if not n_ranks:
            return None
        laid = lay()
        a = np.zeros((len(modules), n_ranks, k), np.float32)
        b = np.zeros((n_ranks, len(laid.row)), np.float32)
        for i, module in enumerate(modules):
            outputs = np.flatnonzero(laid.source == i)
            for lora, first in zip(loras, ends - ranks, strict=True):
                if rank := lora.rank(module):
                    a[i, first : first + rank] = lora.a(module)
                    b[first : first + rank, outputs] = lora.b(module)[laid.row[outputs]].T
        return cls(
            a.reshape(-1, k),
            b,
            (laid.source * n_ranks).astype(np.uint32),
            ends.astype(np.uint32),
        )

    @classmethod
    def of_experts(
        cls, loras: Sequence[Lora], modules: Sequence[Sequence[str]], n: int, k: int
    ) -> Stack | None:
        """Of the matrices (n, k) of all experts, each made of the rows of its `modules` in turn;
        None where no adapter changes one."""
        ranks = [max(lora.rank(m) for of_one in modules for m in of_one) for lora in loras]
        ends, each = np.cumsum(ranks), len(modules[0])
        n_ranks = int(ends[-1])
        if not n_ranks:
            return None
        n_modules = modules_with_own_a(loras, modules)
        a = np.zeros((len(modules), n_modules, n_ranks, k), np.float32)
        b = np.zeros((len(modules), n_ranks, n), np.float32)
        for lora, first in zip(loras, ends - ranks, strict=True):
            for expert, of_one in enumerate(modules):
                for i, module in enumerate(of_one):
                    if rank := lora.rank(module):
                        a[expert, i % n_modules, first : first + rank] = lora.a(module)
                        b[expert, first : first + rank, i::each] = lora.b(module).T
        starts = np.tile(np.arange(each) % n_modules * n_ranks, n // each)
        return cls(a.reshape(-1, k), b, starts.astype(np.uint32), ends.astype(np.uint32))


def modules_with_own_a(loras: Sequence[Lora], modules: Sequence[Sequence[str]]) -> int:
    """So many of an expert: 1 where all have the same (gate and up of one parameter), else all."""
    shared = all(
        len({lora.origin_of_a(module) for module in of_one}) == 1
        for lora in loras
        for of_one in modules
    )
    return 1 if shared else len(modules[0])
