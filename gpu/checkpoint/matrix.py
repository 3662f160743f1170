"""Matrices of a checkpoint on the device.

A matrix is stored row by row, each row padded with zeros to whole blocks of 32 weights and packed
as in `gpu.checkpoint.packing`. On some devices rows are interleaved (`gpu.checkpoint.interleaved`).
A matrix larger than the device's largest binding is cut into shards of whole rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpu.checkpoint.packing import BLOCK, FORMATS
from gpu.checkpoint.row_layout import RowLayout
from gpu.webgpu.buffers import Memory, Tensor, padded


@dataclass(frozen=True, slots=True)
class Shard:
    """Rows `first` … `first + n_rows - 1` of a matrix."""

    tensor: Tensor
    first: int
    n_rows: int


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight of `n` outputs × `k` inputs.

    sources      checkpoint tensors it was made of
    row_layout   returns the source and row of each of its rows; None: not recorded
    interleaved  rows interleaved with each other; 1: none
    """

    name: str
    n: int
    k: int
    dtype: str
    shards: tuple[Shard, ...]
    sources: tuple[str, ...]
    row_layout: Callable[[], RowLayout] | None = None
    interleaved: int = 1

    @property
    def blocks(self) -> int:
        """Blocks of 32 weights per row."""
        return padded(self.k) // BLOCK

    @property
    def row_loads(self) -> int:
        """16-byte loads that hold the weights of a row."""
        return self.blocks * FORMATS[self.dtype].block_words // 4

    @property
    def n_bytes(self) -> int:
        return sum(shard.tensor.n_bytes for shard in self.shards)


@dataclass(frozen=True, slots=True)
class ExpertStack:
    """A weight of the experts of a layer: `n` rows of `matrix` per expert, stacked.

    No expert spans two shards.

    host     all experts in device layout, (experts · n, words), if the device holds only some
    modules  per expert, the modules whose rows alternate in its matrix, named as in
             `gpu.checkpoint.tensor_names.expert_modules`
    """

    matrix: Matrix
    n: int
    host: npt.NDArray[np.uint32] | None = None
    modules: Sequence[Sequence[str]] = ()

    @property
    def n_slots(self) -> int:
        """Expert slots on the device."""
        return self.matrix.n // self.n

    @property
    def expert_bytes(self) -> int:
        """Bytes of one expert."""
        return self.matrix.n_bytes // self.n_slots

    def upload(self, memory: Memory, expert: int, slot: int) -> None:
        """Copy an expert from the host to an expert slot."""
        assert self.host is not None
        first = slot * self.n
        shard = next(s for s in self.matrix.shards if s.first <= first < s.first + s.n_rows)
        row_bytes = 4 * shard.tensor.shape[-1]
        rows = self.host[expert * self.n : (expert + 1) * self.n]
        memory.write(shard.tensor, rows, at=(first - shard.first) * row_bytes)
