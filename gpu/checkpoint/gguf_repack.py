"""Repacking of GGUF blocks into the storage type that holds them exactly: same integers and scales,
in another order.

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

EXACT_FORMATS = {"Q8_0": "q8", "Q4_0": "q4"}
"""Storage type that holds a GGUF block type exactly."""


def repack_blocks(kind: str, rows: Bytes) -> U32:
    """Repack uint8 (n, bytes of a row) of the GGUF type `kind` into uint32 (n, row_words).

    `kind` is one of `EXACT_FORMATS`. Raises OverflowError for scales that are not finite, or whose
    minimum is beyond float16.
    """
    n_bytes = 2 + (BLOCK if kind == "Q8_0" else BLOCK // 2)
    blocks = np.ascontiguousarray(rows).reshape(len(rows), -1, n_bytes)
    scales = np.ascontiguousarray(blocks[..., :2]).view("<f2")[..., 0]
    packed = np.zeros(
        (len(rows), row_words(EXACT_FORMATS[kind], BLOCK * blocks.shape[1])), np.uint32
    )
    _PACKERS[kind](blocks[..., 2:], scales, packed)
    return packed


def _q8_0(integers: Bytes, scales: npt.NDArray[Any], packed: U32) -> None:
    n, n_blocks, _ = integers.shape
    _expect_finite(scales)
    packed[:, : 8 * n_blocks].view(np.uint8)[:] = integers.reshape(n, -1)
    packed[:, 8 * n_blocks :].view(np.float16)[:, :n_blocks] = scales


def _q4_0(integers: Bytes, scales: npt.NDArray[Any], packed: U32) -> None:
    """Repack nibbles: GGUF has the first half of a block in the low nibbles, the second in the
    high."""
    n, n_blocks, _ = integers.shape
    with np.errstate(over="ignore"):
        mins = np.float16(-8) * scales
    _expect_finite(mins)
    nibbles = np.concatenate([integers & 15, integers >> 4], axis=-1)
    pairs = nibbles[..., ::2] | nibbles[..., 1::2] << 4
    packed[:, : 4 * n_blocks].view(np.uint8)[:] = pairs.reshape(n, -1)
    scales_mins = packed[:, 4 * n_blocks :].view(np.float16)
    scales_mins[:, : 2 * n_blocks : 2], scales_mins[:, 1 : 2 * n_blocks : 2] = scales, mins


def _expect_finite(numbers: npt.NDArray[Any]) -> None:
    if not np.isfinite(numbers).all():
        raise OverflowError("the scale or minimum of a block is not finite in float16")


_PACKERS: dict[str, Callable[[Bytes, npt.NDArray[Any], U32], None]] = {
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
}
