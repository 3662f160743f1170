"""Rows of a checkpoint packed and put on the device, a piece at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import lcm
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gpu.checkpoint.abreast import abreast, max_rows, rows_abreast
from gpu.checkpoint.ahead import Ahead, Packed, Room
from gpu.checkpoint.conversion import Conversion
from gpu.checkpoint.kept import Kept, Nothing, is_kept
from gpu.checkpoint.laid import Arrange, Laid, Piece, Rows
from gpu.checkpoint.matrix import Matrix, Shard
from gpu.checkpoint.packing import BLOCK, FORMATS, as_numbers, pack, row_words
from gpu.checkpoint.reader import Checkpoint, WeightSource
from gpu.errors import DeviceError, ModelError
from gpu.webgpu.buffers import Memory

PIECE_WEIGHTS = {"f32": 1 << 19, "f16": 1 << 20, "q8": 1 << 18, "q4": 1 << 18}
"""About how much of a matrix is packed at a time: 2 MiB of what is read and written once, 1 MiB of
what is quantised in many passes."""


class MatrixUploader:
    """Puts matrices of one checkpoint on the device.

    `dtype` is the storage type of matrices. `on_weights` is told how many weights were just put in
    place. `kept`: where packed matrices are kept from an earlier start, or for the next one.
    `conversion`: what became of those that were loaded.

    Matrices are in place when they are returned; in a `with` statement, when that ends: then one is
    packed while another is uploaded.
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
        self._ahead = Ahead()
        self._abreast = Room()
        self._is_open = False

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
        """Rows are read in multiples of `multiple`. `together`: of so many rows each is a part that
        is found by its number and lies in one shard; None: shards hold multiples of `multiple`."""
        dtype, device = dtype or self.dtype, self.memory.device
        unit = together or multiple
        n_abreast = rows_abreast(device, dtype, k, together or n, unit)
        shards = self._make_shards(name, n, row_words(dtype, k), unit, n_abreast)
        put = partial(self._write, shards)
        self._put_rows(name, dtype, n, k, parts, arrange, multiple, put, n_abreast)
        laid = partial(Laid.of, [(part.source, part.order) for part in parts], arrange, n)
        return Matrix(name, n, k, dtype, shards, sources_of(parts), laid, n_abreast)

    def _make_shards(
        self, name: str, n: int, words: int, unit: int, n_abreast: int
    ) -> tuple[Shard, ...]:
        """Room on the device for `n` rows of so many words; shards hold multiples of `unit` and of
        the rows that lie abreast."""
        device, together = self.memory.device, lcm(unit, n_abreast)
        most = max_rows(device, words, n_abreast)
        limit = most // together * together
        if limit == 0:
            raise DeviceError(
                f"{name}: {together} rows that belong together take {4 * words * together:,} "
                f"bytes, but this device binds {4 * words * most:,} at most of rows so long; a "
                f"smaller --dtype needs less"
            )
        shards = []
        for first in range(0, n, limit):
            n_shard = min(limit, n - first)
            tag = name if n <= limit else f"{name}[{first}:{first + n_shard}]"
            tensor = self.memory.weights(tag, n_shard, words, n_abreast)
            shards.append(Shard(tensor, first, n_shard))
        return tuple(shards)

    def _write(self, shards: Sequence[Shard], first: int, packed: Packed) -> None:
        """Rows of a matrix from number `first` on, to wherever they belong."""
        for shard in shards:
            a = max(first, shard.first)
            b = min(first + len(packed), shard.first + shard.n_rows)
            if a < b:
                at = 4 * packed.shape[1] * (a - shard.first)
                self.memory.write(shard.tensor, packed[a - first : b - first], at)

    def _put_rows(
        self,
        name: str,
        dtype: str,
        n: int,
        k: int,
        parts: list[Piece],
        arrange: Arrange,
        multiple: int,
        put: Callable[[int, Packed], None],
        n_abreast: int,
    ) -> None:
        """Have all rows of a matrix put in place in order, a piece at a time, as they lie on the
        device: as an earlier start kept them, or packed now. `put` is given the number of the first
        row and the rows, which are there until it returns."""
        shape, in_place = (n, row_words(dtype, k)), self._in_place(parts, k, dtype)
        kept: Kept = self._kept if is_kept(dtype) and in_place is None else Nothing()
        found = kept.find(name, shape)
        sources, rows = sources_of(parts), arrange(in_place or parts)
        self.conversion.note(sources, dtype, in_place=in_place is not None)
        said = " + ".join(sources) if len(sources) <= 3 else name

        def fill(wanted: slice, room: Room) -> Packed:
            packed = room.words((wanted.stop - wanted.start, shape[1]))
            if in_place is None:
                self._fill(packed, dtype, partial(rows, wanted), k, room, said)
            else:
                rows(wanted, packed)
            return packed

        def done(first: int, packed: Packed) -> None:
            laid = packed
            if n_abreast > 1:
                laid = abreast(dtype, k, packed, n_abreast, self._abreast.words(packed.shape))
            put(first, laid)
            if found is None:
                kept.add(name, shape, packed)
            self._on_weights(len(packed) * k)

        unit = lcm(multiple, n_abreast)
        step = max(unit, PIECE_WEIGHTS[dtype] // k // unit * unit)
        for start in range(0, n, step):
            wanted = slice(start, min(start + step, n))
            if found is None:
                self._ahead.add(partial(fill, wanted), partial(done, start))
            else:
                done(start, found[wanted])
        if not self._is_open:
            self._ahead.finish()

    def _fill(
        self,
        packed: npt.NDArray[np.uint32],
        dtype: str,
        rows: Callable[[npt.NDArray[Any]], None],
        k: int,
        room: Room,
        name: str,
    ) -> None:
        """Rows of `k` weights, as `rows` puts them, as they lie on the device."""
        numbers = as_numbers(dtype, packed, k)
        if numbers is None:
            numbers = room.numbers((len(packed), k))
            rows(numbers)
            self.pack(dtype, numbers, name, packed)
            return
        if k % BLOCK:
            packed.fill(0)  # what pads a row
        rows(numbers)

    def __enter__(self) -> Self:
        """From now on matrices need not be in place when they are returned; they are at the end."""
        self._is_open = True
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._is_open = False
        if kind is None:
            self._ahead.finish()
        else:
            self._ahead.give_up()

    def pack(
        self, dtype: str, rows: npt.NDArray[Any], name: str, out: npt.NDArray[np.uint32]
    ) -> None:
        """Quantise rows of a matrix into `out`. On threads of the loader's own."""
        pack(dtype, rows, name, out)

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


def _packed_rows(source: Checkpoint, part: Piece) -> Rows:
    """As they lie in the file."""
    order = np.asarray(part.order)

    def rows(wanted: slice, out: npt.NDArray[Any]) -> None:
        picked = order[wanted]
        first = int(picked.min())
        found = source.read_packed(part.source, slice(first, int(picked.max()) + 1))
        out[:] = found[picked - first]

    return rows


def sources_of(parts: list[Piece]) -> tuple[str, ...]:
    """The tensors that a matrix is made of, each once."""
    return tuple(dict.fromkeys(part.source for part in parts))
