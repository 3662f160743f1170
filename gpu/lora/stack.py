"""Stacks of adapters: all adapters of one matrix of the engine, their ranks concatenated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpu.checkpoint.reader import F32
from gpu.checkpoint.row_layout import RowLayout
from gpu.lora.adapter import Lora

U32 = npt.NDArray[np.uint32]
VEC4 = 4
"""Outputs that `gpu.ops.lora` computes together: on the device, b and first are padded to whole
vec4s."""


@dataclass(frozen=True, slots=True)
class LoraStack:
    """All adapters of a matrix of `n` outputs × `k` inputs, with R ranks together.

    The matrix is made of one or more modules of the base (queries, keys and values).

    a      (n_modules · R, k): of each module, A of each adapter; zeros for an adapter without the
           module or with fewer ranks for it
    b      (R, n): columns in the order of the matrix's rows, times α / r
    first  (n,): first row in `a` of the module of each output
    ends   (n_loras,): end of each adapter's ranks among the R

    For experts, `a` (n_experts · n_modules · R, k) and `b` (n_experts, R, n) are concatenated over
    experts; n_modules is 1 if all modules of an expert have the same A.
    """

    a: F32
    b: F32
    first: U32
    ends: U32

    @classmethod
    def of(
        cls,
        loras: Sequence[Lora],
        sources: Sequence[str],
        make_row_layout: Callable[[], RowLayout],
        k: int,
    ) -> LoraStack | None:
        """Return the stack for a matrix made of the tensors `sources`; None if no adapter changes
        it.

        `make_row_layout`: returns how the matrix's rows come from the sources.
        """
        modules = [source.removesuffix(".weight") for source in sources]
        ranks = [max(lora.rank(module) for module in modules) for lora in loras]
        ends = np.cumsum(ranks)
        n_ranks = int(ends[-1])
        if not n_ranks:
            return None
        row_layout = make_row_layout()
        a = np.zeros((len(modules), n_ranks, k), np.float32)
        b = np.zeros((n_ranks, len(row_layout.row)), np.float32)
        for i, module in enumerate(modules):
            outputs = np.flatnonzero(row_layout.source == i)
            for lora, first in zip(loras, ends - ranks, strict=True):
                if rank := lora.rank(module):
                    a[i, first : first + rank] = lora.a(module)
                    b[first : first + rank, outputs] = lora.b(module)[row_layout.row[outputs]].T
        return cls(
            a.reshape(-1, k),
            b,
            (row_layout.source * n_ranks).astype(np.uint32),
            ends.astype(np.uint32),
        )

    @classmethod
    def of_experts(
        cls, loras: Sequence[Lora], modules: Sequence[Sequence[str]], n: int, k: int
    ) -> LoraStack | None:
        """Return the stack for the matrices (n, k) of all experts, each made of alternating rows of
        its `modules`; None if no adapter changes one."""
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
    """Return the number of different A per expert: 1 if all its modules share one (gate and up of
    one parameter), else one per module."""
    shared = all(
        len({lora.origin_of_a(module) for module in of_one}) == 1
        for lora in loras
        for of_one in modules
    )
    return 1 if shared else len(modules[0])
