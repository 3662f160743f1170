"""Conversion of stored numbers, against NumPy's conversion of single numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gpu.checkpoint.dtype_convert import BF16_65536, CHUNK_NUMBERS, convert

Array = npt.NDArray[Any]


def as_float32(bits: Array) -> npt.NDArray[np.float32]:
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def filled(stored: Array, dtype: npt.DTypeLike) -> tuple[Array, bool]:
    out = np.full(stored.shape, np.nan, dtype)
    finite = convert(stored, out)
    return out, finite


def test_every_bfloat16_within_float16_is_converted() -> None:
    """Zeros, subnormal numbers, tiny numbers that round, and all others, with both signs."""
    magnitudes = np.arange(BF16_65536, dtype=np.uint16)
    stored = np.concatenate([magnitudes, magnitudes | 0x8000])
    got, finite = filled(stored, np.float16)
    want = as_float32(stored).astype(np.float16)
    assert finite
    assert np.array_equal(got.view(np.uint16), want.view(np.uint16))


def test_overflow_of_float16_is_detected() -> None:
    for magnitude in range(BF16_65536, 0x8000):
        for stored in (magnitude, magnitude | 0x8000):
            assert not filled(np.array([0x3F80, stored], np.uint16), np.float16)[1]


def test_every_bfloat16_is_exact_in_float32() -> None:
    stored = np.arange(1 << 16, dtype=np.uint16)
    got, finite = filled(stored, np.float32)
    assert not finite
    assert np.array_equal(got.view(np.uint32), stored.astype(np.uint32) << 16)
    assert filled(stored[:0x7F80], np.float32)[1]


@pytest.mark.parametrize("stored", [np.uint16, np.float16, np.float32])
@pytest.mark.parametrize("to", [np.float16, np.float32])
@pytest.mark.parametrize(
    "shape", [(0,), (1,), (CHUNK_NUMBERS + 3,), (3, CHUNK_NUMBERS // 2 + 1), (2, 3, 5), (0, 4)]
)
def test_chunks_give_the_same_result_as_the_whole(
    stored: Any, to: Any, shape: tuple[int, ...]
) -> None:
    numbers = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    given = (numbers.view(np.uint32) >> 16).astype(np.uint16) if stored is np.uint16 else numbers
    given = given.astype(stored)
    want = as_float32(given) if stored is np.uint16 else given
    got, finite = filled(given, to)
    assert finite
    assert np.array_equal(got, want.astype(to))


@pytest.mark.parametrize("to", [np.float16, np.float32])
def test_columns_of_a_larger_matrix_are_converted(to: Any) -> None:
    bits = np.random.default_rng(0).integers(0x3000, 0x4000, (700, 300)).astype(np.uint16)
    got, finite = filled(bits[:, 101:290], to)
    assert finite
    assert np.array_equal(got, as_float32(bits)[:, 101:290].astype(to))


@pytest.mark.parametrize("stored", [np.float16, np.float32])
@pytest.mark.parametrize("at", [0, CHUNK_NUMBERS - 1, CHUNK_NUMBERS, 2 * CHUNK_NUMBERS])
def test_a_single_non_finite_number_is_detected_anywhere(stored: Any, at: int) -> None:
    for bad in (np.nan, np.inf, -np.inf):
        numbers = np.zeros(2 * CHUNK_NUMBERS + 1, stored)
        numbers[at] = bad
        for to in (np.float16, np.float32):
            assert not filled(numbers, to)[1]
