"""The weights of an export: the packed rows of every recipe, one after the other, in pieces.

Rows are as in `gpu.checkpoint.packing`, not interleaved: the same pieces serve every profile.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from gpu.checkpoint.matrix import Shard
from gpu.checkpoint.pack_pool import Packed
from gpu.checkpoint.reader import WeightSource
from gpu.checkpoint.recipe import Recipe
from gpu.checkpoint.row_layout import Arrangement, RowSource
from gpu.checkpoint.uploader import PackJob, read_f32
from gpu.checkpoint.weights import WeightLoader
from gpu.export.manifest import ExportedFile
from gpu.export.plan_format import PlanWeight
from gpu.webgpu.buffers import Memory, Tensor

PIECE_BYTES = 32 << 20
"""Size of every piece but the last. File hosts and browsers' caches refuse much larger files."""


class PieceWriter:
    """Writes a stream of bytes as files of `PIECE_BYTES`, WEIGHTS/0000.bin and so on.

    A file has its name when it is complete. Those that are there already are kept: then the stream
    begins at `resumed_at`, and what is written before it is dropped.
    """

    def __init__(self, folder: Path, n_bytes: int) -> None:
        self._folder = folder
        self._n_bytes = n_bytes
        self._file: BinaryIO | None = None
        folder.mkdir(parents=True, exist_ok=True)
        n_done = 0
        while self._is_complete(n_done):
            n_done += 1
        self.resumed_at = self._at = min(n_done * PIECE_BYTES, n_bytes)

    def write(self, data: npt.NDArray[np.uint8]) -> None:
        """Append bytes to the stream."""
        while len(data):
            room = PIECE_BYTES - self._at % PIECE_BYTES
            part, data = data[:room], data[room:]
            if self._file is None:
                self._file = self._partial.open("wb")
            self._file.write(part.data)
            self._at += len(part)
            if self._at % PIECE_BYTES == 0 or self._at == self._n_bytes:
                self._end_piece()

    def pieces(self) -> tuple[ExportedFile, ...]:
        """Return all files with their hashes. Raises ValueError if bytes are missing."""
        if self._at != self._n_bytes:
            raise ValueError(f"{self._at} of {self._n_bytes} bytes of weights were written")
        n = -(-self._n_bytes // PIECE_BYTES)
        return tuple(ExportedFile.of(self._folder.parent, self._path(i)) for i in range(n))

    def _end_piece(self) -> None:
        assert self._file is not None
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._file = None
        self._partial.rename(self._path((self._at - 1) // PIECE_BYTES))

    @property
    def _partial(self) -> Path:
        return self._folder / "incomplete"

    def _path(self, i: int) -> Path:
        return self._folder / f"{i:04}.bin"

    def _is_complete(self, i: int) -> bool:
        size = min(PIECE_BYTES, self._n_bytes - i * PIECE_BYTES)
        path = self._path(i)
        return size > 0 and path.is_file() and path.stat().st_size == size


class PieceLoader(WeightLoader):
    """Loads the weights of a model into pieces instead of onto a device.

    weights  entries of the plan by name, which say where each weight's bytes are
    """

    packs_on_device = False

    def __init__(
        self,
        checkpoint: WeightSource,
        memory: Memory,
        dtype: str,
        weights: Sequence[PlanWeight],
        writer: PieceWriter,
        on_weights: Callable[[int], None] = lambda n: None,
    ) -> None:
        super().__init__(checkpoint, memory, dtype, on_weights)
        self._ends: Mapping[str, int] = {w.name: w.at + w.bytes for w in weights}
        self._writer = writer
        self._at = 0

    def save(self, data: npt.NDArray[np.generic]) -> None:
        """Append bytes to the pieces, from where they were resumed on."""
        flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        known = min(len(flat), max(0, self._writer.resumed_at - self._at))
        self._writer.write(flat[known:])
        self._at += len(flat)

    def _fill_shards(self, job: PackJob, shards: Sequence[Shard], n_interleaved: int) -> None:
        if not self._skip(job.name):
            self._pack_rows(job, self._save_rows, n_interleaved=1)

    def _save_rows(self, first: int, packed: Packed) -> None:
        self.save(packed)

    def _fill_f32(self, recipe: Recipe, sources: list[RowSource], arrange: Arrangement) -> Tensor:
        numbers = read_f32(recipe, sources, arrange)
        self.save(numbers)
        return self.memory.zeros(recipe.name, numbers.shape, purpose="weights")

    def _fill_array(self, name: str, array: npt.NDArray[Any]) -> Tensor:
        self.save(array)
        return self.memory.zeros(name, array.shape, purpose="weights")

    def _skip(self, name: str) -> bool:
        """Return whether the pieces that are there already have all of a weight."""
        end = self._ends[name]
        if end > self._writer.resumed_at:
            return False
        self._at = end
        return True
