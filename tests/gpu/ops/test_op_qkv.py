"""QKV projection, RoPE and writes to the paged cache, against the float64 twin."""

from __future__ import annotations

import numpy as np
import pytest

from gpu.checkpoint.packing import FORMATS
from gpu.checkpoint.weights import rotary_order
from gpu.checks.kv_cache import RowPlaces
from gpu.checks.kv_writes import SOMEWHERE, QkvCase, check_cross_kv, check_qkv, upload_qkv
from gpu.checks.rig import ROUNDING, op_config
from gpu.errors import DeviceError
from gpu.models.rope_tables import rope_cos_sin
from tests.gpu.ops.rig import TUNINGS, Rig, compare, tuned

pytestmark = pytest.mark.parity

HEADS = [(1, 1, 4), (8, 4, 8), (5, 1, 12), (9, 3, 64), (4, 2, 100), (3, 3, 128)]


@pytest.mark.parametrize("tuning", TUNINGS)
@pytest.mark.parametrize("kv", ["f32", "f16"])
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_positions_around_block_borders(
    rig: Rig, heads: tuple[int, int, int], kv: str, tuning: str
) -> None:
    check_qkv(tuned(rig, tuning), QkvCase(heads, SOMEWHERE, kv, seed=heads[0]))


@pytest.mark.parametrize("kv", ["f32", "f16"])
@pytest.mark.parametrize(("n_rows", "bucket"), [(1, 1), (1, 2), (3, 4), (65, 128), (100, 128)])
def test_every_number_of_rows_in_a_bucket(rig: Rig, n_rows: int, bucket: int, kv: str) -> None:
    rows = RowPlaces.of(*((0, position) for position in range(n_rows)))
    check_qkv(rig, QkvCase((2, 1, 8), rows, kv, bucket=bucket, seed=n_rows))


@pytest.mark.parametrize("dtype", FORMATS)
def test_every_format_of_the_weight(rig: Rig, dtype: str) -> None:
    for width, bias in ((7, False), (32, True), (100, False)):
        check_qkv(rig, QkvCase((3, 1, 12), SOMEWHERE, "f16", dtype, width=width, bias=bias))


@pytest.mark.parametrize("shards", [2, 4])
def test_a_weight_cut_into_shards(rig: Rig, shards: int) -> None:
    check_qkv(rig, QkvCase((4, 2, 20), SOMEWHERE, dtype="f16", shards=shards))


@pytest.mark.parametrize(
    ("heads", "rotary_dim"), [((5, 1, 12), 8), ((4, 2, 100), 0), ((3, 3, 16), 4), ((2, 1, 80), 20)]
)
def test_heads_with_partial_rotary_or_none(
    rig: Rig, heads: tuple[int, int, int], rotary_dim: int
) -> None:
    for kv, norm in (("f32", True), ("f16", False)):
        check_qkv(rig, QkvCase(heads, SOMEWHERE, kv, rotary_dim=rotary_dim, norm=norm))


@pytest.mark.parametrize("dtype", ["f32", "f16", "q8"])
@pytest.mark.parametrize("heads", [(0, 1, 4), (0, 5, 12), (0, 12, 64)])
def test_keys_and_values_of_cross_attention(
    rig: Rig, heads: tuple[int, int, int], dtype: str
) -> None:
    """Their weight has no query heads."""
    for kv, norm, width in (("f32", False, 36), ("f16", True, 7)):
        case = QkvCase(heads, SOMEWHERE, kv, dtype, rotary_dim=0, width=width, norm=norm)
        check_cross_kv(rig, case)


@pytest.mark.parametrize("head_dim", [4, 8, 12, 100, 128])
def test_each_vec4_of_the_rotary_order_holds_two_rotary_pairs(head_dim: int) -> None:
    order = rotary_order(head_dim)
    assert sorted(order) == list(range(head_dim))
    vec4s = order.reshape(-1, 4)
    assert (vec4s[:, 1] == vec4s[:, 0] + 1).all()
    assert (vec4s[:, 2:] == vec4s[:, :2] + head_dim // 2).all()


def test_rope_keeps_its_accuracy_at_far_positions(rig: Rig) -> None:
    """The angle of position 131071 has 2^17 radians; float32 alone has it to 0.01."""
    config = op_config(head_dim=8)
    context = 131_072
    cos_sin = rope_cos_sin(config, context)
    angles = np.outer([context - 1], config.rope.inv_freq(8))
    bound = np.full(4, ROUNDING)
    compare("rope_cos_sin.cos", "far", cos_sin[-1, :, 0], np.cos(angles)[0], bound, 0)
    compare("rope_cos_sin.sin", "far", cos_sin[-1, :, 1], np.sin(angles)[0], bound, 0)


def test_a_head_too_wide_for_any_binding_is_refused_by_its_bytes(rig: Rig) -> None:
    config = op_config(head_dim=64, hidden_size=64)
    weight = np.zeros((3 * 64, 64), np.float32)
    with pytest.raises(DeviceError, match=r"64 rows .* take 16,384 bytes, .* binds at most 8,192"):
        upload_qkv(rig, weight, weight[:, 0], config, "f32", 8192)
