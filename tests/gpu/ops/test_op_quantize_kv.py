"""Quantised new keys and values, and the Hadamard rotation, against their twins."""

from __future__ import annotations

import numpy as np
import pytest

from gpu.checks.kv_cache import NUMPY, RowPlaces
from gpu.checks.kv_writes import SOMEWHERE
from gpu.checks.quantize_kv import (
    PACKED,
    ROUNDED,
    check_inverse_hadamard,
    check_quantize_kv,
    check_round_kv,
    store,
    stored,
)
from gpu.kv.formats import hadamard_size, pack_block
from gpu.reference import kv as reference
from gpu.step import KvVariant
from tests.gpu.ops.rig import Rig, as_kind

pytestmark = pytest.mark.parity
HEADS = [(2, 1, 8), (9, 3, 64), (4, 2, 24), (3, 3, 80), (2, 1, 48), (6, 2, 128), (1, 1, 256)]


@pytest.mark.parametrize("dtype", PACKED)
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_codes_scales_and_queries_are_those_of_the_twin(
    rig: Rig, heads: tuple[int, int, int], dtype: str
) -> None:
    check_quantize_kv(rig, dtype, heads)


@pytest.mark.parametrize("dtype", NUMPY)
@pytest.mark.parametrize("kv", ROUNDED, ids=lambda kv: f"{kv.keys}-{kv.values}")
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_keys_and_values_are_rounded_in_place_as_by_the_twin(
    rig: Rig, heads: tuple[int, int, int], kv: KvVariant, dtype: str
) -> None:
    check_round_kv(rig, dtype, kv, heads)


def test_a_scale_is_the_nearest_float16(rig: Rig) -> None:
    """Ties go to the even one; below 2⁻¹⁴, where float16 are equally far apart, too."""
    heads = (1, 1, 256)
    block = pack_block(heads[2])
    steps = np.array([0.0, 0.4, 0.5, 0.6, 1.5, 2.5, 3.5, 1022.5, 1023.4, 1023.5]) * 2.0**-24
    ties = np.array([1 + (2 * i + 1) * 2.0**-11 for i in range(6)])
    beside = np.concatenate([np.nextafter(np.float32(ties), np.float32(end)) for end in (0, 9)])
    largest = np.concatenate([steps, ties, beside, ties * 2.0**-14, ties * 2.0**12, [65519, 7e4]])
    rows = len(SOMEWHERE.slots)
    largest = np.resize(largest.astype(np.float32), (rows, 1, heads[2] // block))
    keys, q = np.repeat(largest, block, axis=-1), np.zeros((rows, heads[2]), np.float32)
    found = store(rig, heads, "q8", SOMEWHERE, keys, keys, q)
    codes, scale = reference.unpack("q8", found.token_words(0), 1, heads[2], block)
    want = np.minimum(largest, 65504).astype(np.float16).astype(np.float64).reshape(scale.shape)
    assert np.array_equal(scale, want)
    exact = reference.encode("q8", keys.astype(np.float64)[..., None, :], block, want)
    assert np.array_equal(codes, exact), "codes are of the stored scale"


@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_outputs_get_the_inverse_of_an_orthogonal_transform(
    rig: Rig, heads: tuple[int, int, int]
) -> None:
    d = heads[2]
    turn = reference.hadamard_matrix(d, hadamard_size(d))
    np.testing.assert_allclose(turn @ turn.T, np.eye(d), atol=1e-12)
    check_inverse_hadamard(rig, heads)


@pytest.mark.parametrize("dtype", PACKED)
def test_a_tokens_words_do_not_depend_on_its_place_or_the_rows_beside_it(
    rig: Rig, dtype: str
) -> None:
    heads = (4, 2, 48)
    together = stored(rig, heads, dtype)
    for row in (0, 3, 7):
        k, v, q = (a[row : row + 1] for a in (together.keys, together.values, together.q))
        own = store(rig, heads, dtype, RowPlaces.of((2, 37)), k, v, q)
        assert np.array_equal(own.new_q[0].view("u4"), together.new_q[row].view("u4"))
        for which in (0, 1):
            assert np.array_equal(own.token_words(which)[0], together.token_words(which)[row])


@pytest.mark.parametrize("heads", [(4, 2, 24), (6, 2, 128), (1, 1, 256)], ids=str)
def test_as_many_lanes_as_on_a_real_gpu(rig: Rig, heads: tuple[int, int, int]) -> None:
    """Workgroups have more lanes than a software device runs in lockstep, so barriers must
    synchronise them."""
    kind = rig.on(as_kind(rig.device, software=False))
    for dtype in PACKED:
        check_quantize_kv(kind, dtype, heads)
    check_inverse_hadamard(kind, heads)
