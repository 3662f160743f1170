"""Checkpoint matrices on the device: packed, padded, sharded.

A matrix is stored row by row, each row padded with zeros to whole blocks of 32 weights, packed as
`gpu.packing` says. What exceeds the largest binding of the device is cut into shards of whole rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpu.buffers import Memory, Tensor, padded
from gpu.checkpoint import Checkpoint
from gpu.errors import ModelError
from gpu.packing import BLOCK, FORMATS, pack, row_words

UPLOAD_ROWS_BYTES = 16 << 20
"""About how much of a matrix is on the host at a time while loading."""

Rows = Callable[[slice], npt.NDArray[Any]]
"""Gives rows of a matrix as float32, or float16 where that is how they are stored."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Rows `first` … `first + n_rows - 1` of a matrix."""

    tensor: Tensor
    first: int
    n_rows: int


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight of `n` outputs × `k` inputs. `sources`: the checkpoint tensors it was made of."""

    name: str
    n: int
    k: int
    dtype: str
    shards: tuple[Shard, ...]
    sources: tuple[str, ...]

    @property
    def blocks(self) -> int:
        """Blocks of 32 weights in a row."""
        return padded(self.k) // BLOCK

    @property
    def row_loads(self) -> int:
        """Loads of 16 bytes that hold the weights of a row."""
        return self.blocks * FORMATS[self.dtype].block_words // 4

    @property
    def n_bytes(self) -> int:
        return sum(shard.tensor.n_bytes for shard in self.shards)


class WeightLoader:
    """Reads tensors of one checkpoint onto the device, checking shapes.

    `dtype` is the storage type of matrices; vectors (norm gains, biases) are always float32.
    `on_bytes` is told how many bytes of the checkpoint were just read.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        memory: Memory,
        dtype: str,
        on_bytes: Callable[[int], None] = lambda n: None,
    ) -> None:
        if dtype not in FORMATS:
            raise ModelError(f"dtype {dtype!r} is not supported; supported: {', '.join(FORMATS)}")
        self.checkpoint = checkpoint
        self.memory = memory
        self.dtype = dtype
        self._on_bytes = on_bytes

    def matrix(self, name: str, source: str, n: int, k: int) -> Matrix:
        """One checkpoint tensor (n, k)."""
        self._expect(source, (n, k))
        return self._upload(name, n, k, (source,), lambda rows: self._rows(source, rows))

    def vocabulary(self, name: str, source: str, n: int, k: int) -> Matrix:
        """An embedding or output matrix: as `matrix`, but 8 bits where others have 4, because
        errors here are not averaged out by later layers."""
        self._expect(source, (n, k))
        dtype = FORMATS[self.dtype].vocabulary
        return self._upload(
            name, n, k, (source,), lambda rows: self._rows(source, rows), dtype=dtype
        )

    def stacked(self, name: str, sources: dict[str, int], k: int) -> Matrix:
        """Tensors (n_i, k) one below the other, e.g. query, key and value projections."""
        for source, n in sources.items():
            self._expect(source, (n, k))

        def rows(wanted: slice) -> npt.NDArray[Any]:
            parts, start = [], 0
            for source, n in sources.items():
                a, b = max(wanted.start, start), min(wanted.stop, start + n)
                if a < b:
                    parts.append(self._rows(source, slice(a - start, b - start)))
                start += n
            return np.concatenate(parts)

        return self._upload(name, sum(sources.values()), k, tuple(sources), rows)

    def interleaved(self, name: str, even: str, odd: str, n: int, k: int) -> Matrix:
        """Two tensors (n, k) as one (2n, k): rows of `even` and `odd` in turn (gate and up)."""
        self._expect(even, (n, k))
        self._expect(odd, (n, k))

        def rows(wanted: slice) -> npt.NDArray[Any]:
            half = slice(wanted.start // 2, wanted.stop // 2)
            pair = np.stack([self._rows(even, half), self._rows(odd, half)], axis=1)
            return pair.reshape(-1, k)

        return self._upload(name, 2 * n, k, (even, odd), rows, 2)

    def vector(self, name: str, *sources: str, n: int, interleave: bool = False) -> Tensor:
        """Vectors of `n` numbers in all, one after the other or in turn, as float32, padded with
        zeros to a multiple of 8."""
        parts = [self.checkpoint.read_f32(source) for source in sources]
        for source, part in zip(sources, parts, strict=True):
            if part.ndim != 1:
                raise ModelError(f"{source} should have one dimension, but has {part.ndim}")
            self._on_bytes(part.nbytes)
        data = np.stack(parts, axis=1).reshape(-1) if interleave else np.concatenate(parts)
        if data.size != n:
            raise ModelError(f"{' + '.join(sources)} should hold {n} numbers, but hold {data.size}")
        whole = np.zeros(padded(n), np.float32)
        whole[:n] = data
        return self.memory.upload(name, whole)

    def _expect(self, source: str, shape: tuple[int, ...]) -> None:
        if source not in self.checkpoint:
            raise ModelError(f"the checkpoint has no tensor {source}; the config promises one")
        found = self.checkpoint.shape(source)
        if found != shape:
            raise ModelError(f"{source} has shape {found}, but the config makes it {shape}")

    def _rows(self, source: str, rows: slice) -> npt.NDArray[Any]:
        read = self.checkpoint.read_f16 if self.dtype == "f16" else self.checkpoint.read_f32
        data: npt.NDArray[Any] = read(source, rows)
        self._on_bytes(data.nbytes)
        return data

    def _upload(
        self,
        name: str,
        n: int,
        k: int,
        sources: tuple[str, ...],
        rows: Rows,
        multiple: int = 1,
        dtype: str | None = None,
    ) -> Matrix:
        """Shards hold multiples of `multiple` rows."""
        dtype = dtype or self.dtype
        words = row_words(dtype, k)
        limit = self.memory.device.max_binding_bytes // (4 * words) // multiple * multiple
        shards = []
        for first, n_shard in _pieces(n, limit):
            tag = name if n <= limit else f"{name}[{first}:{first + n_shard}]"
            tensor = self.memory.zeros(tag, (n_shard, words), "u32", purpose="weights")
            step = max(multiple, UPLOAD_ROWS_BYTES // (4 * k) // multiple * multiple)
            for start, count in _pieces(n_shard, step):
                data = rows(slice(first + start, first + start + count))
                packed = pack(dtype, data, " + ".join(sources))
                self.memory.write(tensor, packed, at=start * 4 * words)
            shards.append(Shard(tensor, first, n_shard))
        return Matrix(name, n, k, dtype, tuple(shards), sources)


def _pieces(n: int, size: int) -> Iterator[tuple[int, int]]:
    """(start, count) of consecutive pieces of at most `size` that cover n."""
    for start in range(0, n, size):
        yield start, min(size, n - start)
