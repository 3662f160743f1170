"""Tokens moved to other positions in a cache of every format, against their twins."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpu.checks.kv_cache import pool_words
from gpu.checks.quantize_kv import PACKED
from gpu.checks.shift_kv import ROTARY, MovedCache, check_shift_kv, check_shift_quantized_kv
from tests.gpu.ops.rig import Rig, as_kind

pytestmark = pytest.mark.parity
HEADS = [(2, 1, 8), (9, 3, 64), (3, 3, 80), (6, 2, 128)]
CASES = [*((heads, "all") for heads in HEADS), *(((4, 2, 24), rotary) for rotary in ROTARY)]
"""Heads of every size with all numbers rotated, and every kind of rotation on one."""


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize(("heads", "rotary"), CASES, ids=str)
def test_keys_are_rotated_by_the_shift_and_values_copied(
    rig: Rig, heads: tuple[int, int, int], dtype: str, rotary: str
) -> None:
    check_shift_kv(rig, dtype, heads, rotary)


@pytest.mark.parametrize("dtype", PACKED)
@pytest.mark.parametrize(("heads", "rotary"), CASES, ids=str)
def test_quantised_keys_are_rotated_and_quantised_again(
    rig: Rig, heads: tuple[int, int, int], dtype: str, rotary: str
) -> None:
    check_shift_quantized_kv(rig, dtype, heads, rotary)


@pytest.mark.parametrize("dtype", ["f16", "rotated4"])
def test_moves_on_a_real_gpus_lanes(rig: Rig, dtype: str) -> None:
    """A GPU takes other numbers of lanes; the result is the same."""
    words = []
    for software in (True, False):
        kind = rig.on(as_kind(rig.device, software))
        moved = MovedCache(kind, (9, 3, 64), dtype)
        words.append(pool_words(kind.memory, replace(moved.pools[0], dtype="u32")))
    np.testing.assert_array_equal(*words)
