"""Arrangements of rows: how the rows of several checkpoint matrices form one device matrix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

ReadRows = Callable[[slice, npt.NDArray[Any]], None]
"""Reads rows of a matrix into an array with as many rows: as float16, float32 or packed uint32, by
its dtype."""

RowOrder = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class RowSource:
    """`n` rows from the checkpoint tensor `source`. `order`: the tensor's output of each row,
    (n,). `transposed`: the outputs are the tensor's columns."""

    source: str
    n: int
    rows: ReadRows
    order: RowOrder | range
    transposed: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Arrangement:
    """How the rows of several sources form one matrix: groups of `each` sources are stacked; within
    a group rows alternate.

    `head_order`: sources are queries, keys and values, stacked, and the rows of each query and key
    head are in this order, (head_dim,). Then rows must be read in whole heads, else in multiples of
    `each`.
    """

    each: int = 1
    head_order: RowOrder | None = None

    def __call__(self, row_sources: list[RowSource]) -> ReadRows:
        """Return a reader of the whole matrix."""
        if self.head_order is not None:
            return qkv_rows(row_sources, self.head_order)
        return stacked(row_sources, self.each)


def alternating(row_sources: list[RowSource]) -> ReadRows:
    """Return a reader that takes one row of each source in turn."""

    def rows(wanted: slice, out: npt.NDArray[Any]) -> None:
        each = slice(wanted.start // len(row_sources), wanted.stop // len(row_sources))
        for i, row_source in enumerate(row_sources):
            row_source.rows(each, out[i :: len(row_sources)])

    return rows


def stacked(row_sources: list[RowSource], each: int) -> ReadRows:
    """Return a reader of groups of `each` sources, stacked; within a group rows alternate.

    Rows must be read in multiples of `each`.
    """
    units = [alternating(row_sources[i : i + each]) for i in range(0, len(row_sources), each)]
    starts = np.cumsum([0, *(each * row_source.n for row_source in row_sources[::each])])

    def rows(wanted: slice, out: npt.NDArray[Any]) -> None:
        first = int(np.searchsorted(starts, wanted.start, "right")) - 1
        for unit, start, end in zip(
            units[first:], starts[first:], starts[first + 1 :], strict=False
        ):
            if start >= wanted.stop:
                break
            a, b = max(wanted.start, start), min(wanted.stop, end)
            unit(slice(a - start, b - start), out[a - wanted.start : b - wanted.start])

    return rows


def qkv_rows(row_sources: list[RowSource], order: RowOrder) -> ReadRows:
    """Return a reader of queries, keys and values, stacked, whole heads at a time.

    `order`: order of the rows of a query or key head, (head_dim,).
    """

    def rows(wanted: slice, out: npt.NDArray[Any]) -> None:
        first = 0
        for i, row_source in enumerate(row_sources):
            start = max(wanted.start - first, 0)
            stop = min(wanted.stop - first, row_source.n)
            if start < stop:
                some = out[first + start - wanted.start : first + stop - wanted.start]
                row_source.rows(slice(start, stop), some)
                if i < 2:
                    for head in some.reshape(-1, len(order), some.shape[-1]):
                        head[:] = head[order]
            first += row_source.n

    return rows


def array_rows(array: npt.NDArray[Any]) -> ReadRows:
    """Return a reader of the rows of an array on the host."""

    def rows(wanted: slice, out: npt.NDArray[Any]) -> None:
        out[:] = array[wanted]

    return rows


@dataclass(frozen=True, slots=True)
class RowLayout:
    """Origin of the rows of a matrix.

    source  index of the source tensor of each row, (n,)
    row     output of that tensor, (n,)
    """

    source: RowOrder
    row: RowOrder

    @classmethod
    def of(
        cls, row_sources: list[tuple[str, RowOrder | range]], arrange: Arrangement, n: int
    ) -> RowLayout:
        """Return the layout of a matrix of `n` rows made from (source, order) pairs: labels are
        arranged as `arrange` arranges the rows."""
        sources = list(dict.fromkeys(source for source, _ in row_sources))
        labelled = []
        for source, order in row_sources:
            of_source = np.full(len(order), sources.index(source))
            labels = np.stack([of_source, np.asarray(order, np.intp)], axis=1)
            labelled.append(RowSource(source, len(order), array_rows(labels), order))
        found = np.empty((n, 2), np.intp)
        arrange(labelled)(slice(0, n), found)
        return cls(*found.T)
