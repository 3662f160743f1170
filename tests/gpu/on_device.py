"""Matrices on the device, as numbers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gpu.checkpoint.interleaved import deinterleave
from gpu.checkpoint.matrix import Matrix
from gpu.checkpoint.packing import unpack
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.webgpu.buffers import Memory
from tests.gpu.engine import driving


def packed_rows(memory: Memory, matrix: Matrix) -> npt.NDArray[np.uint32]:
    """Return the packed rows, (n, row_words), not interleaved."""
    words = np.concatenate([memory.read(shard.tensor) for shard in matrix.shards])
    return deinterleave(matrix.dtype, matrix.k, words, matrix.interleaved)


def stored_numbers(memory: Memory, matrix: Matrix) -> npt.NDArray[np.float32]:
    """Return the unpacked rows, (n, k)."""
    return unpack(matrix.dtype, packed_rows(memory, matrix), matrix.k)


def stored_and_computed(runner: WgpuRunner) -> tuple[list[bytes], bytes]:
    """Return the rows of every matrix, and the logits after 37 tokens in chunks of 17."""
    matrices, memory = runner.model.matrices(), runner._memory
    stored = [packed_rows(memory, matrix).tobytes() for matrix in matrices]
    ids = list(range(3, 40))
    driving.begin(runner, 0, ids, len(ids))
    return stored, driving.last_logits(runner, ids, chunk=17).tobytes()
