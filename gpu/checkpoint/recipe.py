"""Recipes: what fills a weight, from which rows of which tensors, as data.

A recipe says nothing about a device. Shards of a matrix and interleaved rows are decided when it is
placed (`Placement`); its packed bytes are the same everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpu.checkpoint.packing import row_words
from gpu.checkpoint.row_layout import Arrangement, RowOrder, RowSource
from gpu.webgpu.buffers import Tensor


@dataclass(frozen=True, slots=True)
class TensorRows:
    """Rows of one tensor of the checkpoint.

    runs        (first, n): rows first … first + n − 1 of the tensor, one run after the other; all
                its dimensions but the last count as rows
    transposed  its columns instead, of a tensor (k, n)
    head_order  each group of len(head_order) rows is reordered: row i of a group is its row
                head_order[i]; empty: none is
    """

    tensor: str
    runs: tuple[tuple[int, int], ...]
    transposed: bool = False
    head_order: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Recipe:
    """A weight made of `parts`: groups of `each` parts are stacked, and rows of the parts of a
    group alternate. Without parts its numbers are in no tensor of the checkpoint: those of LoRA
    adapters.

    n     rows; of a vector the numbers, the last of them zeros where the parts have fewer
    k     numbers of a row; 0: a vector
    dtype storage type of the rows, see `gpu.checkpoint.packing`; vectors are f32
    plus  added to every number of the parts
    """

    name: str
    dtype: str
    n: int
    k: int
    parts: tuple[TensorRows, ...]
    each: int = 1
    plus: float = 0.0

    @property
    def n_bytes(self) -> int:
        return 4 * self.n * (row_words(self.dtype, self.k) if self.k else 1)


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """Rows `first` … `first + n − 1` of a recipe's weight in `tensor`, `interleaved` rows together
    (`gpu.checkpoint.interleaved`)."""

    tensor: Tensor
    recipe: Recipe
    first: int
    n: int
    interleaved: int = 1


def parts_of(row_sources: list[RowSource], arrange: Arrangement) -> tuple[TensorRows, ...]:
    """Return the sources of a weight as parts of its recipe."""
    order = arrange.head_order
    is_ordered = order is not None and (np.diff(order) != 1).any()
    head_order = tuple(order.tolist()) if order is not None and is_ordered else ()
    return tuple(
        TensorRows(
            source.source, runs_of(source.order), source.transposed, head_order if i < 2 else ()
        )
        for i, source in enumerate(row_sources)
    )


def runs_of(order: RowOrder | range) -> tuple[tuple[int, int], ...]:
    """Return (first, n) of each run of consecutive numbers."""
    if isinstance(order, range) and order.step == 1:
        return ((order.start, len(order)),)
    rows = np.asarray(order)
    starts = np.flatnonzero(np.diff(rows, prepend=rows[0] - 2) != 1)
    lengths = np.diff(starts, append=len(rows))
    return tuple(zip(rows[starts].tolist(), lengths.tolist(), strict=True))
