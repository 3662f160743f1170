"""Stored numbers as float32 or float16.

Work is done in pieces that stay in the processor's cache, in memory that is used again: what the
system hands out it clears first, which takes longer than the work. NumPy has no bfloat16, and
rounds to float16 one number at a time; what a bfloat16 is in either is a matter of a few operations
on its bits, for many at once.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

PIECE = 1 << 18
"""Numbers worked on at a time. Smaller ones leave threads waiting for the interpreter's lock."""

Array = npt.NDArray[Any]

SIGN, MAGNITUDE = np.uint16(0x8000), np.uint16(0x7FFF)
BF16_INFINITY = 0xFF << 7
F16_INFINITY = 0x1F << 10
BF16_65536 = (127 + 16) << 7
"""float16 ends at 65504, and bfloat16 has nothing between 65280 and this."""
BF16_NORMAL = (127 - 14) << 7
"""2^-14, the least float16 with all its digits."""
REBIASED = np.uint16((127 - 15) << 7)
"""What the exponents of the two differ by."""


def convert(stored: Array, out: Array) -> bool:
    """Fill `out`, float32 or float16, with `stored`: float32, float16, or the bits of bfloat16 as
    uint16; contiguous, of the same shape. Exact, or rounded to nearest. Are all of `out` finite?"""
    if stored.dtype != np.uint16:
        step = _rounded
    else:
        step = _bfloat16_as_float32 if out.dtype == np.float32 else _bfloat16_as_float16
    finite = [step(*piece) for piece in _pieces(stored, out)]  # to the end, also after a fault
    return all(finite)


class _Scratch(threading.local):
    """Memory of one thread, for a piece or more; holds anything."""

    def __init__(self) -> None:
        self._arrays: dict[str, Array] = {}

    def __call__(
        self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike = np.uint16
    ) -> Array:
        size = math.prod(shape)
        found = self._arrays.get(name)
        if found is None or len(found) < size:
            found = self._arrays[name] = np.empty(size, dtype)
        return found[:size].reshape(shape)


_scratch = _Scratch()


def _pieces(stored: Array, out: Array) -> Iterator[tuple[Array, Array]]:
    """Flat where both lie in one piece, else some rows at a time."""
    if stored.flags.c_contiguous and out.flags.c_contiguous:
        stored, out = stored.reshape(-1), out.reshape(-1)
    while stored.ndim > 2 and len(stored) == 1:
        stored, out = stored[0], out[0]
    width = stored.size // max(1, len(stored))
    step = max(1, PIECE // max(1, width))
    for start in range(0, len(stored), step):
        yield stored[start : start + step], out[start : start + step]


def _rounded(stored: Array, out: Array) -> bool:
    with np.errstate(over="ignore"):
        out[...] = stored
    if out.dtype == np.float16:
        bits = out.view(np.uint16)
        magnitude = np.bitwise_and(bits, MAGNITUDE, out=_scratch("magnitude", bits.shape))
        return bool(magnitude.max(initial=0) < F16_INFINITY)
    return bool(np.isfinite(out).all())


def _bfloat16_as_float32(stored: Array, out: Array) -> bool:
    """The upper half of a float32."""
    bits = out.view(np.uint32)
    bits[...] = stored
    np.left_shift(bits, np.uint32(16), out=bits)
    magnitude = np.bitwise_and(stored, MAGNITUDE, out=_scratch("magnitude", stored.shape))
    return bool(magnitude.max(initial=0) < BF16_INFINITY)


def _bfloat16_as_float16(stored: Array, out: Array) -> bool:
    """Three more digits, and a smaller exponent; what becomes subnormal is rounded by NumPy."""
    magnitude, sign = _scratch("magnitude", stored.shape), _scratch("sign", stored.shape)
    is_small = _scratch("small", stored.shape, np.bool_)
    np.bitwise_and(stored, MAGNITUDE, out=magnitude)
    largest = magnitude.max(initial=0)
    np.less(magnitude, BF16_NORMAL, out=is_small)
    np.subtract(magnitude, REBIASED, out=magnitude)
    np.left_shift(magnitude, np.uint16(3), out=magnitude)
    np.bitwise_and(stored, SIGN, out=sign)
    np.bitwise_or(magnitude, sign, out=out.view(np.uint16))
    small = np.unravel_index(np.flatnonzero(is_small), stored.shape)
    if len(small[0]):
        wide = stored[small].astype(np.uint32) << np.uint32(16)
        out[small] = wide.view(np.float32).astype(np.float16)
    return bool(largest < BF16_65536)
