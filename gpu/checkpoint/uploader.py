"""Rows of a checkpoint packed, on threads, and put on the device, a piece at a time."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gpu.checkpoint.conversion import Conversion
from gpu.checkpoint.kept import Kept, Nothing, is_kept
from gpu.checkpoint.laid import Arrange, Laid, Piece, Rows
from gpu.checkpoint.matrix import Matrix, Shard
from gpu.checkpoint.packing import FORMATS, pack, row_words
from gpu.checkpoint.reader import Checkpoint, WeightSource
from gpu.errors import DeviceError, ModelError
from gpu.webgpu.buffers import Memory

PIECE_WEIGHTS = 1 << 17
"""About how much of a matrix is packed at a time: what stays in a processor's cache meanwhile, and
what the allocator does not give back to the system after each."""
WORKERS = max(1, min(4, (os.cpu_count() or 1) - 1))
"""Threads that pack pieces; a core is left for the one of the loader, which copies them."""


class MatrixUploader:
    """Puts matrices of one checkpoint on the device.

    `dtype` is the storage type of matrices. `on_weights` is told how many weights were just put in
    place. `kept`: where packed matrices are kept from an earlier start, or for the next one.
    `conversion`: what became of those that were loaded.
    """

    def __init__(
        self,
        checkpoint: WeightSource,
        memory: Memory,
        dtype: str,
        on_weights: Callable[[int], None] = lambda n: None,
        kept: Kept | None = None,
    ) -> None:
        if dtype not in FORMATS:
            raise ModelError(f"dtype {dtype!r} is not supported; supported: {', '.join(FORMATS)}")
        self.checkpoint = checkpoint
        self.memory = memory
        self.dtype = dtype
        self.conversion = Conversion(checkpoint)
        self._on_weights = on_weights
        self._kept = kept or Nothing()
        self._packers = ThreadPoolExecutor(WORKERS, "pack")

    def _upload(
        self,
        name: str,
        n: int,
        k: int,
        parts: list[Piece],
        arrange: Arrange,
        multiple: int = 1,
        dtype: str | None = None,
        together: int | None = None,
    ) -> Matrix:
        """Rows are read in multiples of `multiple`; shards hold multiples of `together` (None: of
        the same)."""
        dtype = dtype or self.dtype
        read = self._reader(name, dtype, n, k, parts, arrange, multiple)
        shards = self._room(name, n, row_words(dtype, k), together or multiple)
        for shard in shards:
            at = 0
            for packed in read(shard.first, shard.n_rows):
                self.memory.write(shard.tensor, packed, at)
                at += packed.nbytes
        laid = partial(Laid.of, [(part.source, part.order) for part in parts], arrange, n)
        return Matrix(name, n, k, dtype, shards, sources_of(parts), laid)

    def _room(self, name: str, n: int, words: int, together: int) -> tuple[Shard, ...]:
        """Room on the device for `n` rows of so many words; shards hold multiples of `together`."""
        bound = self.memory.device.max_binding_bytes
        limit = bound // (4 * words) // together * together
        if limit == 0:
            raise DeviceError(
                f"{name}: {together} rows that belong together take {4 * words * together:,} "
                f"bytes, but this device binds {bound:,} at most; a smaller --dtype needs less"
            )
        shards = []
        for first, n_shard in _pieces(n, limit):
            tag = name if n <= limit else f"{name}[{first}:{first + n_shard}]"
            tensor = self.memory.zeros(tag, (n_shard, words), "u32", purpose="weights")
            shards.append(Shard(tensor, first, n_shard))
        return tuple(shards)

    def _reader(
        self,
        name: str,
        dtype: str,
        n: int,
        k: int,
        parts: list[Piece],
        arrange: Arrange,
        multiple: int,
    ) -> Callable[[int, int], Iterator[npt.NDArray[Any]]]:
        """Gives so many rows of a matrix from a first on as they lie on the device, a piece at a
        time: as an earlier start kept them, or packed now. It is asked for all rows in order."""
        shape, in_place = (n, row_words(dtype, k)), self._in_place(parts, k, dtype)
        kept: Kept = self._kept if is_kept(dtype) and in_place is None else Nothing()
        found = kept.find(name, shape)
        sources, rows = sources_of(parts), arrange(in_place or parts)
        self.conversion.note(sources, dtype, in_place=in_place is not None)
        said = " + ".join(sources) if len(sources) <= 3 else name
        step = max(multiple, PIECE_WEIGHTS // k // multiple * multiple)

        def read(first: int, count: int) -> Iterator[npt.NDArray[Any]]:
            for packed in (
                self._packed(dtype, rows, first, count, step, said)
                if found is None
                else (found[first + a : first + a + b] for a, b in _pieces(count, step))
            ):
                yield packed
                if found is None:
                    kept.add(name, shape, packed)
                self._on_weights(len(packed) * k)

        return read

    def pack(self, dtype: str, rows: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
        """Rows of a matrix as they lie on the device, if they are not packed already. On threads of
        the loader's own."""
        return rows if rows.dtype == np.uint32 else pack(dtype, rows, name)

    def _in_place(self, parts: list[Piece], k: int, dtype: str) -> list[Piece] | None:
        """The same parts with packed rows, when the checkpoint has all of them packed so."""
        source = self.checkpoint
        if not isinstance(source, Checkpoint):
            return None
        for part in parts:
            is_matrix = part.source in source and source.shape(part.source)[1:] == (k,)
            if not is_matrix or not source.is_packed(part.source, dtype):
                return None
        return [replace(part, rows=_packed_rows(source, part)) for part in parts]

    def _packed(
        self, dtype: str, rows: Rows, first: int, n: int, step: int, name: str
    ) -> Iterator[npt.NDArray[Any]]:
        """`n` rows from `first` on as `dtype`, `step` at a time, in order. A few pieces are packed
        ahead of the one that is asked for."""

        def packed(start: int, count: int) -> npt.NDArray[Any]:
            return self.pack(dtype, rows(slice(first + start, first + start + count)), name)

        ahead: deque[Future[npt.NDArray[Any]]] = deque()
        try:
            for piece in _pieces(n, step):
                ahead.append(self._packers.submit(packed, *piece))
                if len(ahead) > WORKERS:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            for future in ahead:
                future.cancel()


def _packed_rows(source: Checkpoint, part: Piece) -> Rows:
    """As they lie in the file."""
    if isinstance(part.order, range):  # the whole tensor
        return partial(source.read_packed, part.source)
    order = part.order

    def rows(wanted: slice) -> npt.NDArray[Any]:
        picked = order[wanted]
        first = int(picked.min())
        return source.read_packed(part.source, slice(first, int(picked.max()) + 1))[picked - first]

    return rows


def sources_of(parts: list[Piece]) -> tuple[str, ...]:
    """The tensors that a matrix is made of, each once."""
    return tuple(dict.fromkeys(part.source for part in parts))


def _pieces(n: int, size: int) -> Iterator[tuple[int, int]]:
    """(start, count) of consecutive pieces of at most `size` that cover n."""
    for start in range(0, n, size):
        yield start, min(size, n - start)
