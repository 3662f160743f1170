"""Repacking of GGUF blocks into the storage type that has the same integers, in another order.

Q8_0 is 32 signed bytes and a float16 scale, which is q8. Q4_1 is 32 nibbles, a float16 scale and a
float16 minimum, which is q4. Q4_0 is Q4_1 without a minimum: weight = (q - 8) · scale, so the
minimum is -8 · scale. Q4_K is eight blocks of 32 nibbles; their scales and minimums are integers of
six bits times two float16 numbers, products that are rounded to float16 here: an error of 0.02 %.
(llama.cpp, ggml-quants.c)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from gpu.checkpoint.packing import BLOCK, U32, row_words
from gpu.gguf.types import TYPES_BY_NAME

Bytes = npt.NDArray[np.uint8]
F16 = npt.NDArray[np.float16]
F32 = npt.NDArray[np.float32]

EXACT_FORMATS = {"Q8_0": "q8", "Q4_0": "q4", "Q4_1": "q4"}
"""Storage type that holds a GGUF block type exactly."""
REPACKED_FORMATS = {**EXACT_FORMATS, "Q4_K": "q4"}
"""Storage type that has the integers of a GGUF block type."""


def repack_blocks(kind: str, rows: Bytes) -> U32:
    """Repack uint8 (n, bytes of a row) of the GGUF type `kind` into uint32 (n, row_words).

    `kind` is one of `REPACKED_FORMATS`. Raises OverflowError for scales and minimums that are not
    finite in float16.
    """
    type = TYPES_BY_NAME[kind]
    blocks = np.ascontiguousarray(rows).reshape(len(rows), -1, type.type_size)
    packed = np.zeros(
        (len(rows), row_words(REPACKED_FORMATS[kind], blocks.shape[1] * type.block_size)), np.uint32
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
    _put_q4(_nibbles(blocks[..., 2:]), scales, mins, packed)


def _q4_1(blocks: Bytes, packed: U32) -> None:
    scales, mins = _float16(blocks[..., :2]), _float16(blocks[..., 2:4])
    _put_q4(_nibbles(blocks[..., 4:]), scales, mins, packed)


def _q4_k(blocks: Bytes, packed: U32) -> None:
    """Two float16, 12 bytes with eight scales and eight minimums of six bits, then 32 bytes for
    each two blocks. The bytes 0 to 3 are the scales of the first four blocks, 4 to 7 their
    minimums; their two upper bits are those of the last four blocks, which have their lower four
    bits in the bytes 8 to 11."""
    n, n_super = blocks.shape[:2]
    first, second, last = (blocks[..., i : i + 4] for i in (4, 8, 12))
    scales = np.concatenate([first & 63, last & 15 | first >> 6 << 4], axis=-1)
    mins = np.concatenate([second & 63, last >> 4 | second >> 6 << 4], axis=-1)
    unit, min_unit = (
        _float16(blocks[..., i : i + 2])[..., np.newaxis].astype(np.float32) for i in (0, 2)
    )
    _expect_finite(unit)
    _expect_finite(min_unit)
    with np.errstate(over="ignore"):
        block_scales = (unit * scales).astype(np.float16).reshape(n, -1)
        block_mins = (-min_unit * mins).astype(np.float16).reshape(n, -1)
    integers = _nibbles(blocks[..., 16:].reshape(n, n_super * 4, BLOCK)).reshape(n, -1, BLOCK)
    _put_q4(integers, block_scales, block_mins, packed)


def _nibbles(integers: Bytes) -> Bytes:
    """Return the integers of blocks, first those in the low nibbles, then those in the high."""
    return np.concatenate([integers & 15, integers >> 4], axis=-1)


def _put_q4(integers: Bytes, scales: F16, mins: F16, packed: U32) -> None:
    """Write blocks as q4. integers (n, blocks, 32), scales and mins (n, blocks)."""
    n, n_blocks, _ = integers.shape
    _expect_finite(scales)
    _expect_finite(mins)
    pairs = integers[..., ::2] | integers[..., 1::2] << 4
    packed[:, : 4 * n_blocks].view(np.uint8)[:] = pairs.reshape(n, -1)
    scales_mins = packed[:, 4 * n_blocks :].view(np.float16)
    scales_mins[:, : 2 * n_blocks : 2], scales_mins[:, 1 : 2 * n_blocks : 2] = scales, mins


def _float16(pairs: Bytes) -> F16:
    return np.ascontiguousarray(pairs).view("<f2")[..., 0]


def _expect_finite(numbers: F16 | F32) -> None:
    if not np.isfinite(numbers).all():
        raise OverflowError("the scale or minimum of a block is not finite in float16")


_PACKERS: dict[str, Callable[[Bytes, U32], None]] = {
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q4_K": _q4_k,
}
