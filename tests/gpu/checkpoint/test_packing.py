"""Packed weights: the layout bit by bit, the error of the numbers, and refused numbers."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gpu.checkpoint.packing import BLOCK, FORMATS, pack, row_words, unpack
from gpu.checkpoint.quantize import SLAB_BLOCKS
from gpu.errors import ModelError

Array = npt.NDArray[Any]
WIDTHS = (1, 31, 32, 33, 64, 172, 257, 576)


def normal(n: int, k: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=(n, k)).astype(np.float32)


def there_and_back(dtype: str, rows: Array) -> Array:
    return unpack(dtype, pack(dtype, rows), rows.shape[1])


def words(dtype: str, row: Array) -> list[str]:
    """Return a row's words in hexadecimal."""
    return [f"{word:08x}" for word in pack(dtype, np.array([row], np.float32))[0]]


# ---- the layout ------------------------------------------------------------------------------


def test_float32_rows_are_padded_to_whole_blocks() -> None:
    assert words("f32", [1.0, -2.0, 0.5]) == ["3f800000", "c0000000", "3f000000"] + 29 * ["0" * 8]


def test_float16_is_packed_two_per_word_the_first_in_the_low_half() -> None:
    assert words("f16", [1.0, -2.0, 0.5]) == ["c0003c00", "00003800"] + 14 * ["0" * 8]


def test_q8_packs_four_per_word_and_scales_behind_all_blocks() -> None:
    row = np.zeros(65)
    row[:4] = 127, -1, 2, -127  # scale 1: 3c00
    row[4 * 7 + 3] = 5
    row[32] = -254  # scale 2: 4000
    row[64] = 63.5  # scale 1/2: 3800
    packed = words("q8", row)
    assert len(packed) == 3 * 8 + 4
    assert packed[:8] == ["8102ff7f", *6 * ["0" * 8], "05000000"]
    assert packed[8:16] == ["00000081", *7 * ["0" * 8]]
    assert packed[16:24] == ["0000007f", *7 * ["0" * 8]]
    assert packed[24:] == ["40003c00", "00003800", "0" * 8, "0" * 8]


def test_q4_packs_eight_per_word_and_scales_and_mins_behind_all_blocks() -> None:
    up = np.arange(32) % 16 * 0.5 - 2  # scale 1/2: 3800, minimum -2: c000
    down = np.arange(32)[::-1] % 16 * 2.0 + 1  # scale 2: 4000, minimum 1: 3c00
    packed = words("q4", np.concatenate([up, down]))
    assert len(packed) == 2 * 4 + 4
    assert packed[:4] == ["76543210", "fedcba98"] * 2
    assert packed[4:8] == ["89abcdef", "01234567"] * 2
    assert packed[8:] == ["c0003800", "3c004000", "0" * 8, "0" * 8]


@pytest.mark.parametrize(("dtype", "k", "expected"), [
    ("f32", 1, 32), ("f16", 33, 32), ("q8", 32, 12), ("q8", 256, 68), ("q8", 257, 80),
    ("q4", 32, 8), ("q4", 128, 20), ("q4", 129, 28), ("q4", 576, 92),
])  # fmt: skip
def test_words_of_a_row(dtype: str, k: int, expected: int) -> None:
    assert row_words(dtype, k) == expected
    assert pack(dtype, normal(3, k)).shape == (3, expected)


@pytest.mark.parametrize("dtype", FORMATS)
def test_a_long_row_has_the_stated_bits_for_each_weight(dtype: str) -> None:
    assert 32 * row_words(dtype, 4096) == 4096 * FORMATS[dtype].bits_per_weight


@pytest.mark.parametrize("dtype", ["f32", "f16", "q8"])
@pytest.mark.parametrize("k", [1, 33, 257])
def test_padding_is_zero_where_an_embedding_reads_it(dtype: str, k: int) -> None:
    packed = pack(dtype, normal(5, k) + 3)
    whole = -(-k // BLOCK) * BLOCK
    assert not unpack(dtype, packed, whole)[:, k:].any()


def test_a_row_of_another_width_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 12 words per q4 row of 64 weights, but got 8"):
        unpack("q4", pack("q4", normal(1, 32)), 64)


# ---- errors of the numbers -------------------------------------------------------------------


@pytest.mark.parametrize("k", WIDTHS)
def test_float_formats_round_to_nearest(k: int) -> None:
    rows = normal(9, k)
    assert np.array_equal(there_and_back("f32", rows), rows)
    assert np.array_equal(there_and_back("f16", rows), rows.astype(np.float16).astype(np.float32))
    assert np.array_equal(pack("f16", rows.astype(np.float16)), pack("f16", rows))


@pytest.mark.parametrize("k", WIDTHS)
@pytest.mark.parametrize("size", [1.0, 1e-3, 1e-6, 1e4])
def test_q8_is_within_half_a_step(k: int, size: float) -> None:
    rows = normal(9, k) * np.float32(size)
    for start in range(0, k, BLOCK):
        block = rows[:, start : start + BLOCK]
        step = np.abs(block).max(1, keepdims=True) / 127
        # float16 rounds the step itself, by a digit in 2048 or by a whole 2^-24
        most = 0.5 * (step * (1 + 2.0**-11) + 2.0**-24)
        assert (np.abs(there_and_back("q8", rows)[:, start : start + BLOCK] - block) <= most).all()


@pytest.mark.parametrize("k", WIDTHS)
@pytest.mark.parametrize("size", [1.0, 1e-3, 1e-5, 1e4])
def test_q4_has_less_error_than_a_min_max_scale(k: int, size: float) -> None:
    rows = normal(200, k) * np.float32(size)
    found = np.square(there_and_back("q4", rows) - rows).sum()
    plain = 0.0
    for start in range(0, k, BLOCK):
        block = rows[:, start : start + BLOCK].astype(np.float64)
        low, high = block.min(1, keepdims=True), block.max(1, keepdims=True)
        step = np.maximum((high - low) / 15, 2.0**-24)
        plain += np.square(np.rint((block - low) / step) * step + low - block).sum()
    rounding = ((2.0**-11 * size) ** 2 + 2.0**-48) / 4  # of the grid itself, to float16
    assert found <= 0.93 * plain + k * 200 * rounding


@pytest.mark.slow
def test_q4_is_near_the_least_possible_error() -> None:
    blocks = normal(64, 32, seed=1)
    found = np.square(there_and_back("q4", blocks) - blocks).sum(1)
    least = np.array([least_error(block.astype(np.float64)) for block in blocks])
    assert (found >= least * 0.999).all()
    assert found.sum() <= 1.15 * least.sum()


def least_error(w: Array) -> float:
    """Σ (q · scale + minimum - w)², minimised by a fine search for scale and minimum."""
    reach, middle = (w.max() - w.min()) / 2, (w.max() + w.min()) / 2
    least = np.inf
    for part, shift in itertools.product(np.linspace(0.6, 1.1, 101), np.linspace(-0.15, 0.15, 31)):
        step = reach * part / 7.5
        low = middle + reach * (shift - part)
        q = np.clip(np.rint((w - low) / step), 0, 15)
        fit = np.polynomial.polynomial.polyfit(q, w, 1)
        least = min(least, np.square(fit[0] + fit[1] * q - w).sum())
    return float(least)


@pytest.mark.parametrize(("dtype", "end"), [("f32", 0.1), ("f16", 127), ("q8", 127), ("q4", 120)])
def test_representable_numbers_are_exact(dtype: str, end: float) -> None:
    for rows in (np.zeros((3, 40), np.float32), np.sign(normal(5, 70)) * np.float32(end)):
        assert np.array_equal(there_and_back(dtype, rows), rows)


def test_a_block_of_equal_numbers_is_exact() -> None:
    for value in (0.75, -3.0, 2.0**-24, 65504.0):
        rows = np.full((2, 45), value, np.float32)
        assert np.array_equal(there_and_back("q4", rows), rows)


def test_an_outlier_affects_only_its_own_block() -> None:
    rows = normal(4, 96)
    spoilt = rows.copy()
    spoilt[:, 40] = 50
    for dtype in ("q8", "q4"):
        clean, other = there_and_back(dtype, rows), there_and_back(dtype, spoilt)
        assert np.array_equal(clean[:, :32], other[:, :32])
        assert np.array_equal(clean[:, 64:], other[:, 64:])
        assert np.abs(other[:, 40] - 50).max() <= 50 / 15


def test_close_numbers_far_from_zero_are_told_apart_as_well_as_float16_can() -> None:
    rows = (100 + normal(20, 64)).astype(np.float32)
    assert np.abs(there_and_back("q4", rows) - rows).max() <= 0.5


@pytest.mark.parametrize("size", [2.0**-14, 2.0**-20, 2.0**-24, 1e-12, 1e-40])
def test_tiny_numbers_have_a_small_error(size: float) -> None:
    rows = (np.random.default_rng(2).uniform(-1, 1, size=(8, 64)) * size).astype(np.float32)
    step = np.abs(rows).max() / 7.5 + 2.0**-24
    for dtype in ("q8", "q4"):
        assert np.abs(there_and_back(dtype, rows) - rows).max() <= step


@pytest.mark.parametrize("dtype", ["q8", "q4"])
def test_a_rows_numbers_do_not_depend_on_the_rows_beside_it(dtype: str) -> None:
    """Both engines pack the same matrices in different chunks."""
    for k, n in ((20, SLAB_BLOCKS + 1), (172, 45), (576, 130)):
        rows = normal(n, k)
        whole = pack(dtype, rows)
        for portion in (1, 2, 7, 64):
            last = rows[n - portion :]
            assert np.array_equal(pack(dtype, last), whole[n - portion :])


# ---- refused numbers -------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "least"), [("f16", 65520.0), ("q8", 8.4e6), ("q4", 65520.0)])
def test_numbers_beyond_float16_are_refused_by_name(dtype: str, least: float) -> None:
    rows = normal(3, 50)
    for value in (least, -least, 1e38):
        rows[1, 40] = value
        with pytest.raises(ModelError, match=f"^head cannot be stored as {dtype}: .*use dtype f32"):
            pack(dtype, rows, "head")


def test_the_largest_numbers_of_float16_can_be_stored() -> None:
    rows = np.array([[65504.0, -65504.0, 0.0, 1.0]], np.float32)
    assert np.abs(there_and_back("q4", rows) - rows).max() <= 65504 / 15
    assert np.abs(there_and_back("q8", rows) - rows).max() <= 65504 / 254 * 1.001
