"""Matrices of a checkpoint as they lie on the device.

A matrix is stored row by row, each row padded with zeros to whole blocks of 32 weights, packed as
`gpu.checkpoint.packing` says; on some devices several rows lie abreast (`gpu.checkpoint.abreast`).
What exceeds the largest binding of the device is cut into shards of whole rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpu.checkpoint.laid import Laid
from gpu.checkpoint.packing import BLOCK, FORMATS
from gpu.webgpu.buffers import Memory, Tensor, padded


@dataclass(frozen=True, slots=True)
class Shard:
    """Rows `first` … `first + n_rows - 1` of a matrix."""

    tensor: Tensor
    first: int
    n_rows: int


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight of `n` outputs × `k` inputs, `abreast` rows side by side. `sources`: the checkpoint
    tensors it was made of; `laid`: tells how."""

    name: str
    n: int
    k: int
    dtype: str
    shards: tuple[Shard, ...]
    sources: tuple[str, ...]
    laid: Callable[[], Laid] | None = None
    abreast: int = 1

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


@dataclass(frozen=True, slots=True)
class ExpertStack:
    """A weight of each expert of a layer, `n` rows of `matrix` for each, one below the other; no
    expert lies in two shards. `host`: where there is not room for all, all of them as they lie on
    the device, (experts · n, words); None: they are there. `modules`: of each expert those whose
    rows its matrix has in turn, as `gpu.checkpoint.parts.expert_modules` names them."""

    matrix: Matrix
    n: int
    host: npt.NDArray[np.uint32] | None = None
    modules: Sequence[Sequence[str]] = ()

    @property
    def n_slots(self) -> int:
        """Experts there is room for."""
        return self.matrix.n // self.n

    @property
    def expert_bytes(self) -> int:
        """Of one of them."""
        return self.matrix.n_bytes // self.n_slots

    def bring(self, memory: Memory, expert: int, slot: int) -> None:
        """Copy an expert from the host to a slot."""
        assert self.host is not None
        first = slot * self.n
        shard = next(s for s in self.matrix.shards if s.first <= first < s.first + s.n_rows)
        row_bytes = 4 * shard.tensor.shape[-1]
        rows = self.host[expert * self.n : (expert + 1) * self.n]
        memory.write(shard.tensor, rows, at=(first - shard.first) * row_bytes)
