"""How the rows of several matrices of a checkpoint make those of one on the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Rows = Callable[[slice, npt.NDArray[Any]], None]
"""Puts rows of a matrix into an array of so many: as float16 or float32, whichever that is of, or
packed, as uint32."""

Order = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Piece:
    """A matrix of `n` rows that comes from the tensor `source`; `order`: which of its outputs they
    are (n,)."""

    source: str
    n: int
    rows: Rows
    order: Order | range


Arrange = Callable[[list[Piece]], Rows]


def alone(pieces: list[Piece]) -> Rows:
    return pieces[0].rows


def in_turn(pieces: list[Piece]) -> Rows:
    """A row of each, then the next of each."""

    def rows(wanted: slice, out: npt.NDArray[Any]) -> None:
        each = slice(wanted.start // len(pieces), wanted.stop // len(pieces))
        for i, piece in enumerate(pieces):
            piece.rows(each, out[i :: len(pieces)])

    return rows


def below(pieces: list[Piece], each: int) -> Rows:
    """One below the other, `each` of them at a time with their rows in turn. Rows are asked for in
    multiples of `each`."""
    units = [in_turn(pieces[i : i + each]) for i in range(0, len(pieces), each)]
    starts = np.cumsum([0, *(each * piece.n for piece in pieces[::each])])

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


def heads(pieces: list[Piece], order: Order) -> Rows:
    """Queries, keys and values one below the other, whole heads at a time; `order`: of the rows of
    a query or key head (head_dim,)."""

    def rows(wanted: slice, out: npt.NDArray[Any]) -> None:
        first = 0
        for i, piece in enumerate(pieces):
            start = max(wanted.start - first, 0)
            stop = min(wanted.stop - first, piece.n)
            if start < stop:
                some = out[first + start - wanted.start : first + stop - wanted.start]
                piece.rows(slice(start, stop), some)
                if i < 2:
                    heads = some.reshape(-1, len(order), some.shape[-1])
                    some[:] = heads[:, order].reshape(some.shape)
            first += piece.n

    return rows


def rows_of(array: npt.NDArray[Any]) -> Rows:
    """Those of a matrix that is on the host."""

    def rows(wanted: slice, out: npt.NDArray[Any]) -> None:
        out[:] = array[wanted]

    return rows


@dataclass(frozen=True, slots=True)
class Laid:
    """Where the rows of a matrix come from: `source`, which of its sources (n,), and `row`, which
    output of that tensor (n,)."""

    source: Order
    row: Order

    @classmethod
    def of(cls, pieces: list[tuple[str, Order | range]], arrange: Arrange, n: int) -> Laid:
        """Of a matrix of `n` rows; `pieces`: source and order of each. Lays labels out as `arrange`
        lays the rows out."""
        sources = list(dict.fromkeys(source for source, _ in pieces))
        labelled = []
        for source, order in pieces:
            of_source = np.full(len(order), sources.index(source))
            labels = np.stack([of_source, np.asarray(order, np.intp)], axis=1)
            labelled.append(Piece(source, len(order), rows_of(labels), order))
        found = np.empty((n, 2), np.intp)
        arrange(labelled)(slice(0, n), found)
        return cls(*found.T)
