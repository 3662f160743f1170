"""Repacking of GGUF blocks into the storage type that holds them exactly: same integers and scales,
in another order.

Q8_0 is 32 signed bytes and a float16 scale, which is q8. Q4_1 is 32 nibbles, a float16 scale and a
float16 minimum, which is q4. Q4_0 is Q4_1 without a minimum: weight = (q - 8) · scale, so the
minimum is -8 · scale (llama.cpp, ggml-quants.c).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from gpu.checkpoint.packing import BLOCK, U32, row_words
from gpu.gguf.types import TYPES_BY_NAME

Bytes = npt.NDArray[np.uint8]
F16 = npt.NDArray[np.float16]

EXACT_FORMATS = {"Q8_0": "q8", "Q4_0": "q4", "Q4_1": "q4"}
"""Storage type that holds a GGUF block type exactly."""


def repack_blocks(kind: str, rows: Bytes) -> U32:
    """Repack uint8 (n, bytes of a row) of the GGUF type `kind` into uint32 (n, row_words).

    `kind` is one of `EXACT_FORMATS`. Raises OverflowError for scales and minimums that are not
    finite in float16.
    """
    type = TYPES_BY_NAME[kind]
    blocks = np.ascontiguousarray(rows).reshape(len(rows), -1, type.type_size)
    packed = np.zeros(
        (len(rows), row_words(EXACT_FORMATS[kind], BLOCK * blocks.shape[1])), np.uint32
    )
    _PACKERS[kind](blocks, packed)
    return packed


def _q8_0(blocks: Bytes, packed: U32) -> None:
    n, n_blocks, _ = blocks.shape
    scales = _float16(blocks[..., :2])
    _expect_finite(scales)
    packed[:, : 8 * n_blocks].view(np.uint8)[:] = blocks[..., 2:].reshape(n, -1)
    packed[:, 8 * n_blocks :].view(np.float16)[:, :n_blocks] = scales


def _q4_0(blocks: Bytes, packed: U32) -> None:
    scales = _float16(blocks[..., :2])
    with np.errstate(over="ignore"):
        mins = np.float16(-8) * scales
    _put_q4(blocks[..., 2:], scales, mins, packed)


def _q4_1(blocks: Bytes, packed: U32) -> None:
    _put_q4(blocks[..., 4:], _float16(blocks[..., :2]), _float16(blocks[..., 2:4]), packed)


def _put_q4(integers: Bytes, scales: F16, mins: F16, packed: U32) -> None:
    """Write blocks as q4: GGUF has the first half of a block in the low nibbles, the second in the
    high."""
    n, n_blocks, _ = integers.shape
    _expect_finite(scales)
    _expect_finite(mins)
    nibbles = np.concatenate([integers & 15, integers >> 4], axis=-1)
    pairs = nibbles[..., ::2] | nibbles[..., 1::2] << 4
    packed[:, : 4 * n_blocks].view(np.uint8)[:] = pairs.reshape(n, -1)
    scales_mins = packed[:, 4 * n_blocks :].view(np.float16)
    scales_mins[:, : 2 * n_blocks : 2], scales_mins[:, 1 : 2 * n_blocks : 2] = scales, mins


def _float16(pairs: Bytes) -> F16:
    return np.ascontiguousarray(pairs).view("<f2")[..., 0]


def _expect_finite(numbers: F16) -> None:
    if not np.isfinite(numbers).all():
        raise OverflowError("the scale or minimum of a block is not finite in float16")


_PACKERS: dict[str, Callable[[Bytes, U32], None]] = {
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
}
