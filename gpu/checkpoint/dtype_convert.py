"""Conversion of stored numbers to float32 or float16.

Work is done in chunks that fit in the processor's cache, with scratch memory that is reused: the
system clears fresh memory first, which takes longer than the work. NumPy has no bfloat16 and rounds
to float16 one number at a time, so bfloat16 is converted with vectorised operations on its bits.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

CHUNK_NUMBERS = 1 << 18
"""Numbers per chunk. With smaller chunks, threads wait for the interpreter's lock."""

Array = npt.NDArray[Any]

SIGN, MAGNITUDE = np.uint16(0x8000), np.uint16(0x7FFF)
BF16_INFINITY = 0xFF << 7
F16_INFINITY = 0x1F << 10
BF16_65536 = (127 + 16) << 7
"""Least bfloat16 that overflows float16: float16 ends at 65504, and bfloat16 has nothing between
65280 and 65536."""
BF16_NORMAL = (127 - 14) << 7
"""2^-14, the smallest normal float16."""
REBIASED = np.uint16((127 - 15) << 7)
"""Difference of the exponent biases of bfloat16 and float16, at bfloat16's exponent bits."""


def convert(stored: Array, out: Array) -> bool:
    """Fill `out` with `stored`, exactly or rounded to nearest; return whether all of it is finite.

    `stored` is float32, float16, or bfloat16 as uint16 bits. `out` is float32 or float16,
    contiguous, of the same shape.
    """
    if stored.dtype != np.uint16:
        step = _rounded
    else:
        step = _bfloat16_as_float32 if out.dtype == np.float32 else _bfloat16_as_float16
    finite = [step(*chunk) for chunk in _chunks(stored, out)]  # a list: `out` is always filled
    return all(finite)


class _Scratch(threading.local):
    """Reusable memory of one thread; its contents are undefined."""

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


def _chunks(stored: Array, out: Array) -> Iterator[tuple[Array, Array]]:
    """Yield chunks of both arrays: flat if both are contiguous, else some rows at a time."""
    if stored.flags.c_contiguous and out.flags.c_contiguous:
        stored, out = stored.reshape(-1), out.reshape(-1)
    while stored.ndim > 2 and len(stored) == 1:
        stored, out = stored[0], out[0]
    width = stored.size // max(1, len(stored))
    step = max(1, CHUNK_NUMBERS // max(1, width))
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
    """Convert by shifting: bfloat16 is the upper half of a float32."""
    bits = out.view(np.uint32)
    bits[...] = stored
    np.left_shift(bits, np.uint32(16), out=bits)
    magnitude = np.bitwise_and(stored, MAGNITUDE, out=_scratch("magnitude", stored.shape))
    return bool(magnitude.max(initial=0) < BF16_INFINITY)


def _bfloat16_as_float16(stored: Array, out: Array) -> bool:
    """Convert by rebiasing the exponent; NumPy rounds what becomes subnormal."""
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
