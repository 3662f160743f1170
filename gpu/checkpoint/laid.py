"""How the rows of several matrices of a checkpoint make those of one on the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Rows = Callable[[slice], npt.NDArray[Any]]
"""Gives rows of a matrix as float32, or float16 where that is how they are stored."""

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

    def rows(wanted: slice) -> npt.NDArray[Any]:
        each = slice(wanted.start // len(pieces), wanted.stop // len(pieces))
        found = np.stack([piece.rows(each) for piece in pieces], axis=1)
        return found.reshape(-1, found.shape[-1])

    return rows


def below(pieces: list[Piece], each: int) -> Rows:
    """One below the other, `each` of them at a time with their rows in turn. Rows are asked for in
    multiples of `each`."""
    units = [in_turn(pieces[i : i + each]) for i in range(0, len(pieces), each)]
    starts = np.cumsum([0, *(each * piece.n for piece in pieces[::each])])

    def rows(wanted: slice) -> npt.NDArray[Any]:
        found = []
        first = int(np.searchsorted(starts, wanted.start, "right")) - 1
        for unit, start, end in zip(
            units[first:], starts[first:], starts[first + 1 :], strict=False
        ):
            if start >= wanted.stop:
                break
            found.append(unit(slice(max(wanted.start - start, 0), min(wanted.stop, end) - start)))
        return found[0] if len(found) == 1 else np.concatenate(found)

    return rows


def heads(pieces: list[Piece], order: Order) -> Rows:
    """Queries, keys and values one below the other, whole heads at a time; `order`: of the rows of
    a query or key head (head_dim,)."""

    def rows(wanted: slice) -> npt.NDArray[Any]:
        found, first = [], 0
        for i, piece in enumerate(pieces):
            start = max(wanted.start - first, 0)
            stop = min(wanted.stop - first, piece.n)
            if start < stop:
                some = piece.rows(slice(start, stop))
                heads = some.reshape(-1, len(order), some.shape[-1])
                found.append((heads if i == 2 else heads[:, order]).reshape(some.shape))
            first += piece.n
        return np.concatenate(found)

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
            labelled.append(Piece(source, len(order), labels.__getitem__, order))
        return cls(*arrange(labelled)(slice(0, n)).T)
