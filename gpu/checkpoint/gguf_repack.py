"""GGUF blocks that a storage type can hold as they are: their integers and scales, in its order.

Q8_0 is 32 signed bytes and a float16 scale, which is q8. Q4_0 is 32 nibbles and a float16 scale,
weight = (q - 8) · scale, which is q4 with the minimum -8 · scale (llama.cpp, ggml-quants.c).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from gpu.checkpoint.packing import BLOCK, U32, row_words

Bytes = npt.NDArray[np.uint8]

AS = {"Q8_0": "q8", "Q4_0": "q4"}
"""The storage type that holds a type of blocks exactly."""


def packed_blocks(kind: str, rows: Bytes) -> U32:
    """uint8 (n, bytes of a row) of type `kind`, one of `AS` → uint32 (n, row_words). Raises
    OverflowError for scales that are not finite, or whose minimum is beyond float16."""
    n_bytes = 2 + (BLOCK if kind == "Q8_0" else BLOCK // 2)
    blocks = np.ascontiguousarray(rows).reshape(len(rows), -1, n_bytes)
    scales = np.ascontiguousarray(blocks[..., :2]).view("<f2")[..., 0]
    packed = np.zeros((len(rows), row_words(AS[kind], BLOCK * blocks.shape[1])), np.uint32)
    _PACKERS[kind](blocks[..., 2:], scales, packed)
    return packed


def _q8_0(integers: Bytes, scales: npt.NDArray[Any], packed: U32) -> None:
    n, n_blocks, _ = integers.shape
    _expect_finite(scales)
    packed[:, : 8 * n_blocks].view(np.uint8)[:] = integers.reshape(n, -1)
    packed[:, 8 * n_blocks :].view(np.float16)[:, :n_blocks] = scales


def _q4_0(integers: Bytes, scales: npt.NDArray[Any], packed: U32) -> None:
    """The first half of a block is in the low nibbles of its bytes, the second in the high."""
    n, n_blocks, _ = integers.shape
    with np.errstate(over="ignore"):
        minima = np.float16(-8) * scales
    _expect_finite(minima)
    nibbles = np.concatenate([integers & 15, integers >> 4], axis=-1)
    pairs = nibbles[..., ::2] | nibbles[..., 1::2] << 4
    packed[:, : 4 * n_blocks].view(np.uint8)[:] = pairs.reshape(n, -1)
    grids = packed[:, 4 * n_blocks :].view(np.float16)
    grids[:, : 2 * n_blocks : 2], grids[:, 1 : 2 * n_blocks : 2] = scales, minima


def _expect_finite(numbers: npt.NDArray[Any]) -> None:
    if not np.isfinite(numbers).all():
        raise OverflowError("the grid of a block is not finite in float16")


_PACKERS: dict[str, Callable[[Bytes, npt.NDArray[Any], U32], None]] = {
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
}
