"""Statistics of one tensor, read in chunks from the file: memory use does not grow with the tensor.

Two passes: the first finds count, mean and extremes. The second finds the histogram and the moments
about that mean, which avoids cancellation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from gpu.checkpoint.reader import READABLE, Checkpoint
from gpu.errors import InvalidRequest
from gpu.files.json_object import shown

BINS = 64
OUTLIERS = 16
CHUNK_NUMBERS = 1 << 20
"""Numbers per chunk: about 50 MiB with all intermediate results."""

F64 = npt.NDArray[np.float64]


class Outlier(msgspec.Struct, frozen=True):
    """One of the largest values of a tensor.

    index       position, one number per dimension
    deviations  (value − mean) / std; None if std is 0
    """

    index: tuple[int, ...]
    value: float
    deviations: float | None


class TensorSummary(msgspec.Struct, frozen=True):
    """Statistics of the finite values of a tensor; None if it has none.

    n, n_nan, n_inf  number of all values, NaNs and infinities
    std         √(mean of (x − mean)²)
    kurtosis    mean of (x − mean)⁴ / std⁴: 3 for normal numbers; None if std is 0
    zeros       share of exact zeros among the finite values
    max_abs     largest |x|, on the wire `reach`; the histogram's `counts` are of 64 equal bins over
                −max_abs … max_abs (−1 … 1 if all values are 0), the last one closed
    outliers    the largest |x|, at most 16, largest first, ties by position
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    n: int
    n_nan: int
    n_inf: int
    min: float | None
    max: float | None
    mean: float | None
    std: float | None
    kurtosis: float | None
    zeros: float | None
    max_abs: float = msgspec.field(name="reach")
    counts: tuple[int, ...]
    outliers: tuple[Outlier, ...]

    @classmethod
    def from_folder(cls, folder: str | Path, name: str) -> TensorSummary:
        """Return the summary of a tensor in a model folder. Raises as `tensor_summary`, and
        ModelError for a folder without weights."""
        return tensor_summary(Checkpoint.open(folder), name)


def tensor_summary(checkpoint: Checkpoint, name: str) -> TensorSummary:
    """Read the tensor called `name` twice and return its statistics.

    Raises InvalidRequest for an unknown name and for a dtype that holds no weights.
    """
    if name not in checkpoint:
        raise InvalidRequest(
            f"the checkpoint has no tensor {shown(name)}; its inventory lists the names", "name"
        )
    dtype, shape = checkpoint.dtype(name), checkpoint.shape(name)
    if not checkpoint.is_readable(name):
        raise InvalidRequest(
            f"tensor {shown(name)} has dtype {dtype}; expected one of {', '.join(READABLE)}", "name"
        )
    first = _Extremes()
    for piece in _pieces(checkpoint, name):
        first.add(piece)
    second = _Moments(first.mean, first.max_abs)
    for at, piece in _places(_pieces(checkpoint, name)):
        second.add(at, piece)
    return _summary(name, dtype, shape, first, second)


def _pieces(checkpoint: Checkpoint, name: str) -> Iterator[F64]:
    for piece in checkpoint.pieces(name, CHUNK_NUMBERS):
        yield piece.astype(np.float64)


def _places(pieces: Iterator[F64]) -> Iterator[tuple[int, F64]]:
    """Yield each chunk with the number of values before it."""
    at = 0
    for piece in pieces:
        yield at, piece
        at += len(piece)


@dataclass(slots=True)
class _Extremes:
    """First pass: counts, sum and extremes."""

    n: int = 0
    n_nan: int = 0
    n_inf: int = 0
    n_zero: int = 0
    total: float = 0.0
    least: float = math.inf
    most: float = -math.inf

    def add(self, values: F64) -> None:
        self.n += len(values)
        self.n_nan += int(np.isnan(values).sum())
        self.n_inf += int(np.isinf(values).sum())
        finite = values[np.isfinite(values)]
        if len(finite):
            self.n_zero += int((finite == 0).sum())
            self.total += float(finite.sum())
            self.least = min(self.least, float(finite.min()))
            self.most = max(self.most, float(finite.max()))

    @property
    def n_finite(self) -> int:
        return self.n - self.n_nan - self.n_inf

    @property
    def mean(self) -> float:
        return self.total / self.n_finite if self.n_finite else 0.0

    @property
    def max_abs(self) -> float:
        return max(abs(self.least), abs(self.most)) if self.n_finite else 0.0


@dataclass(slots=True)
class _Moments:
    """Second pass: moments, histogram and outliers.

    largest  (−|value|, position, value), in the order of outliers
    """

    mean: float
    max_abs: float
    square: float = 0.0
    fourth: float = 0.0
    counts: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(BINS, np.int64))
    largest: list[tuple[float, int, float]] = field(default_factory=list)

    def add(self, at: int, values: F64) -> None:
        keep = np.isfinite(values)
        finite = values[keep]
        if not len(finite):
            return
        squares = (finite - self.mean) ** 2
        self.square += float(squares.sum())
        self.fourth += float((squares**2).sum())
        max_abs = self.max_abs or 1.0
        self.counts += np.histogram(finite, BINS, (-max_abs, max_abs))[0]
        self._keep_largest(at, values, keep)

    def _keep_largest(self, at: int, values: F64, keep: npt.NDArray[np.bool_]) -> None:
        sizes = np.where(keep, np.abs(values), -1.0)
        n = min(OUTLIERS, int(keep.sum()))
        bound = np.partition(sizes, len(sizes) - n)[len(sizes) - n]
        above = np.flatnonzero(sizes > bound)
        ties = np.flatnonzero(sizes == bound)[: n - len(above)]
        for i in np.concatenate([above, ties]).tolist():
            self.largest.append((-float(sizes[i]), at + i, float(values[i])))
        self.largest = sorted(self.largest)[:OUTLIERS]


def _summary(
    name: str, dtype: str, shape: tuple[int, ...], first: _Extremes, second: _Moments
) -> TensorSummary:
    n = first.n_finite
    # The rounded mean of equal numbers may differ from them.
    std = math.sqrt(second.square / n) if first.least < first.most else 0.0
    return TensorSummary(
        name=name,
        dtype=dtype,
        shape=shape,
        n=first.n,
        n_nan=first.n_nan,
        n_inf=first.n_inf,
        min=first.least if n else None,
        max=first.most if n else None,
        mean=first.mean if n else None,
        std=std if n else None,
        kurtosis=second.fourth / n / (second.square / n) ** 2 if std else None,
        zeros=first.n_zero / n if n else None,
        max_abs=first.max_abs,
        counts=tuple(second.counts.tolist()),
        outliers=tuple(
            Outlier(
                tuple(int(i) for i in np.unravel_index(place, shape)) if shape else (),
                value,
                (value - first.mean) / std if std else None,
            )
            for _, place, value in second.largest
        ),
    )
