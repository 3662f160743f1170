"""Reading of weights back from the device, as the numbers that the shaders compute with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gpu.checkpoint.interleaved import deinterleave
from gpu.checkpoint.matrix import Matrix
from gpu.checkpoint.packing import unpack
from gpu.webgpu.buffers import ITEM_BYTES, Memory, Tensor


def matrix_rows(
    matrix: Matrix, memory: Memory, first: int = 0, n: int | None = None
) -> npt.NDArray[np.float32]:
    """Return `n` rows of a matrix from `first` on, (n, k) float32; None: all that follow. For tests
    and inspection only, as `Memory.read`."""
    end = matrix.n if n is None else min(first + n, matrix.n)
    found, group = [], matrix.interleaved
    for shard in matrix.shards:
        begin = max(first, shard.first) - shard.first
        until = min(end, shard.first + shard.n_rows) - shard.first
        if begin < until:
            at = begin // group * group
            words = _read_rows(memory, shard.tensor, at, -(-until // group) * group)
            packed = deinterleave(matrix.dtype, matrix.k, words, group)
            found.append(unpack(matrix.dtype, packed, matrix.k)[begin - at : until - at])
    return np.concatenate(found)


def _read_rows(memory: Memory, tensor: Tensor, first: int, end: int) -> npt.NDArray[Any]:
    """Return rows of a tensor as they are stored; a texture is read as a whole."""
    if tensor.view is not None:
        return memory.read(tensor)[first:end]
    width = tensor.shape[1]
    n_bytes = ITEM_BYTES[tensor.dtype] * width
    part = replace(
        tensor,
        shape=(end - first, width),
        n_bytes=(end - first) * n_bytes,
        offset=tensor.offset + first * n_bytes,
    )
    return memory.read(part)
